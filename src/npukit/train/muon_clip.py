"""MuonClip as ms-swift has it: Muon that keeps attention scores small (QK-Clip).

Where the largest score of a step exceeds a threshold, the weights of all queries and keys are scaled down after the
update. Parameters that are no matrices learn by SGD with momentum, and everything decays.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from npukit.train.joined import Joined

QUERIES_AND_KEYS = ("q_proj", "k_proj")


class MuonClip(Joined):
    """Muon for `matrices`, of which `clipped` are those of queries and keys, and SGD for `others`.

    `largest` is a tensor that attention raises to the largest score of a step, and that a step sets back to zero.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        clipped: list[nn.Parameter],
        others: list[nn.Parameter],
        largest: Tensor,
        *,
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        qk_clip_tau: float = 100.0,
        **options: Any,
    ) -> None:
        muon = torch.optim.Muon(
            matrices, lr, weight_decay, momentum, nesterov=False, adjust_lr_fn="match_rms_adamw", **options
        )
        super().__init__(muon, *([torch.optim.SGD(others, lr, momentum)] if others else []))
        self._clipped, self._others = clipped, others
        self._largest, self._tau, self._decay = largest, qk_clip_tau, weight_decay

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self._others:  # SGD's own decay would go through the momentum
            parameter.mul_(1 - self.param_groups[-1]["lr"] * self._decay)
        super().step(closure)
        if dist.is_initialized():
            dist.all_reduce(self._largest, dist.ReduceOp.MAX)
        factor = (self._tau / self._largest).clamp(max=1).sqrt()
        for parameter in self._clipped:
            parameter.mul_(factor)
        self._largest.zero_()
