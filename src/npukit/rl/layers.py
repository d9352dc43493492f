"""Switch what differs between learning and answering: compiled layers, and the dtype of adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_SMALL = 0.1  # layers of a model


class SamplerLayers:
    """Inside this context, layers are called as the rollout engine compiles them; outside, as the trainer does.

    >>> with SamplerLayers(layers):
    ...     engine.generate(requests)
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers: list[Any] = list(layers)
        self._others: list[Any] = [None for _ in layers]  # those not in use at the moment

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        for number, layer in enumerate(self._layers):
            layer._compiled_call_impl, self._others[number] = self._others[number], layer._compiled_call_impl


class SamplerWeights:
    """Inside this context, adapter matrices have the dtype that the model computes in; outside, the one they are
    trained in.

    Autocast would cast each of them in every pass, to the same values. The copies keep their addresses, which recorded
    graphs rely on.

    >>> with SamplerWeights(model, torch.bfloat16):
    ...     engine.generate(requests)
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._copies: list[Tensor] = []
        self._trained: list[tuple[nn.Parameter, Tensor]] = []

    def __enter__(self) -> None:
        trained = [value for value in self._model.parameters() if self._is_cast(value)]
        if sum(map(torch.numel, trained)) > _SMALL * sum(map(torch.numel, self._model.parameters())):
            trained = []  # the weights of a whole model are not duplicated
        if [copy.shape for copy in self._copies] != [value.shape for value in trained]:
            self._copies = [torch.empty_like(value, dtype=self._dtype) for value in trained]
        self._trained = [(value, value.data) for value in trained]
        for value, copy in zip(trained, self._copies, strict=True):
            value.data = copy.copy_(value.data)

    def __exit__(self, *_: object) -> None:
        for value, before in self._trained:
            value.data = before
        self._trained = []

    def _is_cast(self, value: nn.Parameter) -> bool:
        return value.requires_grad and value.dim() == 2 and value.dtype != self._dtype
