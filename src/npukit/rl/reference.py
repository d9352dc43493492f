"""The reference model for the KL divergence: the policy before training."""

from __future__ import annotations

from torch import Tensor, nn


class InitialWeights:
    """Inside this context, a model has its initial trained weights, including those of an adapter that training
    continues.

    Only the trained weights are duplicated, which is little with LoRA. Weights that ranks share must be gathered when
    this is created and entered.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first: list[Tensor] = [parameter.detach().clone() for parameter in self._trained()]

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def _swap(self) -> None:
        for number, parameter in enumerate(self._trained()):
            parameter.data, self._first[number] = self._first[number], parameter.data
