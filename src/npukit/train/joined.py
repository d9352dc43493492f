"""Several optimizers that step as one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class Joined(torch.optim.Optimizer):
    """Several optimizers as one. It has the groups of all, so that the learning rate schedule reaches them."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        for part, groups in self._own():
            part.param_groups, part.state = groups, self.state

    def _own(self) -> Iterable[tuple[torch.optim.Optimizer, list[dict[str, Any]]]]:
        at = 0
        for part in self.parts:
            yield part, self.param_groups[at : at + len(part.param_groups)]
            at += len(part.param_groups)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        for part, groups in self._own():
            part.param_groups, part.state = groups, self.state
