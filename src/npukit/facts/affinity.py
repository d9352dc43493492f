"""Fused operators of torch_npu for code that is often written out."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Fused:
    """A fused operator; the comments at the head of affinity.yaml say what each field means."""

    pattern: str
    op: str
    portable: str
    trap: str

    @property
    def advice(self) -> str:
        name = f"torch_npu.{self.op}" if self.op.startswith("npu_") else f"torch_npu.optim.{self.op}"
        how = f"{self.portable}, or {name} for NPUs alone" if self.portable else f"{name} where the tensor is on an NPU"
        return f"Use {how}. Mind: {self.trap}."


@functools.cache
def _fused() -> dict[str, Fused]:
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows = yaml.load(Path(__file__).with_name("affinity.yaml").read_text(encoding="utf-8"), Loader=loader)
    return {row["pattern"]: Fused(**row) for row in rows}


def fused(pattern: str) -> Fused:
    """The fused operator for a pattern.

    >>> fused("rms_norm").op
    'npu_rms_norm'
    """
    return _fused()[pattern]
