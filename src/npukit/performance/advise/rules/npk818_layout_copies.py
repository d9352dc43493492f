"""Tensors are copied only to change their layout in memory: contiguous(), clone(), or reshape after a transpose.

Most operators read transposed tensors as they are. A copy that is transposed back and copied again, or a clone that
nobody writes into, computes nothing.

example:
    y = self.norm(x.transpose(1, 2))          # not: x.transpose(1, 2).contiguous()
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import operator_of, shown, time_by_line
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import HostCall, Kernel

rule = Rule(
    "NPK818",
    "layout-copies",
    needs=("kernels", "script"),
    why="A copy reads and writes a whole tensor, forward and backward, and computes nothing.",
    remedy="Drop contiguous() and clone() where nothing needs them, keep one layout through the model (dimensions in "
    "the order that the operators want, channels_last for convolutions), and use view instead of reshape.",
)
COPIES = {"aten::clone", "aten::contiguous", "aten::copy_"}
KERNELS = {"Transpose", "TransposeD", "AsStrided", "ViewCopy", "TensorMove", "Identity"}


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    lines = time_by_line(rank, lambda operator: operator.direct and operator.op == "aten::clone", _is_copy)
    ms = sum(lines.values())
    if ms > 0:
        what = f"Copies that only change the layout of tensors take {ms:.1f} ms of each step"
        yield rule.advice(rank, what, ms, shown(lines, rank), Confidence.medium, line=next(iter(lines)))


def _is_copy(work: Kernel | HostCall, operators: set[str]) -> bool:
    if isinstance(work, Kernel) and work.type in KERNELS:
        return True
    return operator_of(work) in COPIES and len(set(work.dtypes[:2]) - {""}) < 2
