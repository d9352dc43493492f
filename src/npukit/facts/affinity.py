"""Fused operators of torch_npu for computations that are often written out."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npukit.facts.data import load_rows
from npukit.facts.target import Target
from npukit.facts.torch_npu.support import has_own_op


@dataclass(frozen=True)
class Fused:
    """A fused operator. The comments at the head of affinity.yaml explain the fields."""

    pattern: str
    op: str
    call: str
    portable: str
    trap: str

    @property
    def advice(self) -> str:
        """What to do, as sentences."""
        use = f"Use {self.portable}, or {self.call} on NPUs only." if self.portable else f"Use {self.call} on NPUs."
        return f"{use} Note: {self.trap}"


@functools.cache
def _fused() -> dict[str, Fused]:
    return {fused.pattern: fused for fused in load_rows("affinity.yaml", Fused)}


def operators() -> list[Fused]:
    """All known fused operators."""
    return list(_fused().values())


def fused(pattern: str, target: Target) -> Fused | None:
    """The fused operator for a pattern; None if the target's torch_npu does not have it.

    >>> fused("rms_norm", Target.of()).op
    'npu_rms_norm'
    """
    operator = _fused()[pattern]
    return operator if operator.portable or has_own_op(operator.op, target.torch_npu) else None
