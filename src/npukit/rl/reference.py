"""The reference model: the policy before training, from which the KL divergence is measured."""

from __future__ import annotations

from types import TracebackType

from torch import Tensor, nn


class InitialWeights:
    """Inside, a model has the trained weights that it began with; an adapter that was continued is as it was, too.

    Only what is trained is kept twice: with LoRA that is little. Weights that ranks share must be whole when it is made
    and entered.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._first: list[Tensor] = [parameter.detach().clone() for parameter in self._trained()]

    def __enter__(self) -> None:
        self._swap()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._swap()

    def _trained(self) -> list[nn.Parameter]:
        return [parameter for parameter in self._model.parameters() if parameter.requires_grad]

    def _swap(self) -> None:
        for number, parameter in enumerate(self._trained()):
            parameter.data, self._first[number] = self._first[number], parameter.data
