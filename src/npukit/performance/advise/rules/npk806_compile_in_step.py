"""Operators are compiled, or kernels loaded, in the middle of steps.

On an NPU that is aclopCompileAndExecute, which online compilation (jit_compile) uses; on CUDA it is loading a module.
It should be over after the first steps, unless shapes vary.

example:
    torch.npu.set_compile_mode(jit_compile=False)
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import COMPILE, Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK806",
    "compile-in-step",
    needs=("kernels", "launches"),
    devices=("npu", "cuda"),
    why="Compiling costs the host milliseconds to seconds, while the device has nothing to do.",
    remedy="Profile later steps to see whether it stops. If not: torch.npu.set_compile_mode(jit_compile=False), keep "
    "shapes the same, and look for the operators that the evidence names.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    ms, calls = rank.host_causes["compile"], rank.calls(COMPILE)
    if calls and ms > 0:
        evidence = f"{calls[0].name}: {len(calls) / rank.steps:.0f} calls per step"
        confidence = Confidence.high if rank.steps > 1 else Confidence.medium
        yield rule.advice(rank, f"Compiling operators holds up each step by {ms:.1f} ms", ms, evidence, confidence)
