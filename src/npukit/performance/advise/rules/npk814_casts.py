"""Tensors are converted from one data type to another in every step.

A few casts belong to mixed precision. Many come from inputs in float64, from buffers that are kept in another type than
the model, and from operators that autocast sends to float32 and back.

example:
    data = torch.from_numpy(array).float()    # numpy arrays are float64
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.performance.read.model import HostCall, Kernel, Work

rule = Rule(
    "NPK814",
    "casts",
    why="A cast reads and writes a whole tensor and computes nothing.",
    remedy="Keep weights, buffers and inputs in the type that is computed in, cast once outside of the loop, and "
    "keep float64 out (numpy arrays are float64).",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    casts: Sequence[Kernel | HostCall]
    if rank.trace.device == "cpu":
        start, end = rank.window
        casts = [op for op in rank.trace.ops if op.name == "aten::copy_" and _differ(op) and start <= op.start < end]
    else:
        compute = rank.of(Work.compute)
        casts = [
            kernel for kernel in compute if kernel.type == "Cast" or (kernel.op == "aten::copy_" and _differ(kernel))
        ]
    if not casts:
        return
    ms = rank.per_step(sum(cast.duration for cast in casts))
    pairs = Counter(f"{cast.dtypes[1]} to {cast.dtypes[0]}" for cast in casts if len(cast.dtypes) > 1 and _differ(cast))
    lines = Counter[str]()
    for cast in casts:
        lines[cast.stack] += cast.duration
    lines.pop("", None)
    kinds = f", mostly {pairs.most_common(1)[0][0]}" if pairs else ""
    evidence = f"{len(casts) / rank.steps:.0f} casts per step{kinds}"
    line = lines.most_common(1)[0][0] if lines else ""
    yield rule.advice(rank, f"Casts take {ms:.2f} ms of each step", ms, evidence, line=line)


def _differ(copy: Kernel | HostCall) -> bool:
    """Whether a copy changes the type of a tensor; a Python number beside one is none."""
    tensor = not copy.shapes or bool(copy.shapes[0])
    return tensor and len(copy.dtypes) > 1 and copy.dtypes[0] != copy.dtypes[1] and "" not in copy.dtypes[:2]
