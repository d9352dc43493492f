"""Device memory is requested from the driver, or returned to it, in the middle of steps.

After the first steps PyTorch's allocator should have all it needs. It asks again where shapes grow, where memory is
fragmented, or where empty_cache() has released it.

example:
    export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.performance.advise.rank import ALLOCATE, Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.report.report import counted

rule = Rule(
    "NPK805",
    "memory-calls",
    needs=("kernels", "launches"),
    devices=("npu", "cuda"),
    why="The driver's calls for memory take up to milliseconds, and freeing waits for the device.",
    remedy="Remove empty_cache() from the loop, keep shapes the same, and set "
    "PYTORCH_NPU_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF on CUDA).",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    ms, calls = rank.host_causes["allocate"], rank.calls(ALLOCATE)
    if calls and ms > 0:
        names = ", ".join(f"{name} {count}x" for name, count in Counter(call.name for call in calls).most_common(3))
        yield rule.advice(
            rank,
            f"Calls for device memory hold up each step by {ms:.1f} ms",
            ms,
            f"{names} in {counted(rank.steps, 'step')}",
        )
