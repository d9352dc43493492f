"""Functions or operators are compiled, or kernels loaded, in the middle of steps.

For torch.compile that is Dynamo, which traces a function anew when one of its guards fails; torch_npu's profiler does
not show it, but `npukit profile` does. On an NPU it is
aclopCompileAndExecute, too, which online compilation (jit_compile) uses; on CUDA it is loading a module.
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
    needs=("kernels", "host"),
    why="Compiling costs the host milliseconds to seconds, while the device has nothing to do.",
    remedy="Profile later steps to see whether it stops. If not: torch.npu.set_compile_mode(jit_compile=False), keep "
    "shapes the same, and look for the operators that the evidence names.",
)
RECOMPILES = (
    "Profile later steps to see whether it stops. If not, TORCH_LOGS=recompiles prints why: call torch.compile once, "
    "outside of the loop, keep shapes the same or mark them dynamic, and pass numbers that change as tensors."
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    confidence = Confidence.high if rank.steps > 1 else Confidence.medium
    if (ms := rank.host_causes["trace"]) > 0:
        what = f"torch.compile holds up each step by {ms:.1f} ms"
        evidence = f"{len(rank.tracing) / rank.steps:.1f} compilations per step"
        line = next(iter(rank.lines_of(rank.host_waits["trace"])), "")
        yield rule.advice(rank, what, ms, evidence, confidence, RECOMPILES, line, subject="torch.compile")
    if (ms := rank.host_causes["compile"]) > 0:
        calls = rank.calls(COMPILE)
        evidence = f"{calls[0].name}: {len(calls) / rank.steps:.0f} calls per step"
        yield rule.advice(rank, f"Compiling operators holds up each step by {ms:.1f} ms", ms, evidence, confidence)
