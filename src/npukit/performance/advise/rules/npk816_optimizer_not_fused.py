"""The optimizer updates parameter by parameter, with many small kernels each.

A fused optimizer does the same with a few kernels for all parameters.

example:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.spans import length, overlap, union

rule = Rule(
    "NPK816",
    "optimizer-not-fused",
    needs=("kernels", "host"),
    why="Hundreds of kernels of a few microseconds take longer to launch than to run.",
    remedy="Give the optimizer fused=True, or use torch_npu.optim.NpuFusedAdamW (or its like) on NPUs.",
)
FUSED = ("_fused_", "Fused", "npu_apply", "ApplyAdam", "_foreach")  # several tensors to a kernel already
MANY = 100  # operators of one update
WON = 0.7  # of the time of an update, as a rule of thumb


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    marks = [mark for mark in rank.trace.marks if mark.name.startswith("Optimizer.step#")]
    spans = overlap(union((mark.start, mark.end) for mark in marks), [rank.window])
    inside = [op for op in rank.trace.ops if op.name.startswith("aten::") and _within(op.start, spans)]
    if not spans or len(inside) < MANY * len(spans):
        return
    names = {marks[0].name, *(op.name for op in inside)}
    if any(word in name for name in names for word in FUSED):
        return
    takes = rank.per_step(length(spans))
    evidence = f"{marks[0].name} calls {len(inside) / len(spans):.0f} operators and takes {takes:.1f} ms"
    what = f"A fused optimizer would save about {takes * WON:.1f} ms of each step"
    yield rule.advice(rank, what, takes * WON, evidence, Confidence.medium, line=marks[0].stack)


def _within(time: int, spans: list[tuple[int, int]]) -> bool:
    return any(start <= time < end for start, end in spans)
