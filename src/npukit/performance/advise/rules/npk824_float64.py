"""Operators compute in float64.

It mostly comes in by accident: numpy arrays are float64, and a single float64 tensor makes the result of each operator
float64, too. NPUs have no cores for it.

example:
    data = torch.from_numpy(array).float()
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.kineto import outermost
from npukit.performance.read.model import HostCall, Kernel

rule = Rule(
    "NPK824",
    "float64",
    needs=("kernels", "shapes"),
    why="float64 is half as fast as float32 on a CPU, up to 64 times slower on a GPU, and left to the AI CPU of an "
    "NPU.",
    remedy="Turn arrays into float32 where they become tensors (.float(), dtype=torch.float32), and look for "
    ".double(), float64 and torch.set_default_dtype.",
)
FEW = 64  # numbers
WON = 0.5  # of the time, in float32


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    wide = [item for item in rank.work if _is_wide(item)]
    if rank.trace.device == "cpu":
        wide = outermost([item for item in wide if isinstance(item, HostCall)])  # type: ignore[assignment]
    if not wide:
        return
    ms = rank.per_step(sum(item.duration for item in wide))
    line = next(iter(rank.script.float64), "") or next((item.stack for item in wide if item.stack), "")
    longest = max(wide, key=lambda item: item.duration)
    name = longest.type if isinstance(longest, Kernel) else longest.name
    evidence = f"{len(wide) / rank.steps:.0f} operators per step that take {ms:.1f} ms, the longest {name}"
    text = rank.script.text_of(line)
    evidence += f"; float64 comes in at `{text[:60]}`" if text else ""
    what = f"Computing in float64 costs about {ms * WON:.1f} ms of each step more than float32"
    yield rule.advice(rank, what, ms * WON, evidence, Confidence.medium, line=line)


def _is_wide(work: Kernel | HostCall) -> bool:
    sizes = zip(work.dtypes, work.shapes, strict=False)
    return any(dtype in ("float64", "complex128") and math.prod(shape) >= FEW for dtype, shape in sizes)
