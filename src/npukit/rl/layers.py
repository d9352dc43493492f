"""Layers that are compiled twice: for training batches, and for the forward passes of the rollout engine."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import nn


class SamplerLayers:
    """Inside, layers are called as the rollout engine compiles them, if it does; outside, as the trainer does.

    >>> with SamplerLayers(layers):
    ...     engine.generate(requests)
    """

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        self._layers: list[Any] = list(layers)
        self._others: list[Any] = [None for _ in layers]  # what is not called at the moment

    def __enter__(self) -> None:
        self._swap()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._swap()

    def _swap(self) -> None:
        for number, layer in enumerate(self._layers):
            layer._compiled_call_impl, self._others[number] = self._others[number], layer._compiled_call_impl
