"""Operators that run on the card's own CPU cores (AI CPU) instead of its AI cores.

These have no kernel for the AI cores with this data type: 64-bit integers, float64 and complex numbers are the usual
reasons.

example:
    index = index.to(torch.int32)             # once, before the loop
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.performance.read.model import Kernel, Work

rule = Rule(
    "NPK810",
    "aicpu-operators",
    devices=("npu",),
    why="An AI CPU is tens of times slower than an AI core, and its operators wait in a queue of their own.",
    remedy="Use int32 instead of int64 and float32 instead of float64 around these operators, or replace them; "
    "compute indices and masks once, outside of the step.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    by_type: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in rank.of(Work.aicpu):
        by_type[kernel.type].append(kernel)
    for kind, kernels in by_type.items():
        ms = rank.time_of(kernels)
        first = max(kernels, key=lambda kernel: kernel.duration)
        evidence = f"{len(kernels) / rank.steps:.0f}x per step, {', '.join(first.dtypes) or first.name}"
        line = next((kernel.stack for kernel in kernels if kernel.stack), "")
        yield rule.advice(
            rank, f"{kind} runs on the AI CPU for {ms:.2f} ms of each step", ms, evidence, line=line, subject=kind
        )
