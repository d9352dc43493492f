"""PyTorch's allocator holds much more memory than tensors need at the peak.

Blocks of one size cannot be used for another. The rest is lost for larger batches.

example:
    export PYTORCH_NPU_ALLOC_CONF=expandable_segments:True
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule

rule = Rule(
    "NPK841",
    "fragmentation",
    needs=("memory",),
    devices=("npu", "cuda"),
    why="Memory that is reserved but not allocated is wasted, and out-of-memory errors come earlier.",
    remedy="Set PYTORCH_NPU_ALLOC_CONF=expandable_segments:True (PYTORCH_CUDA_ALLOC_CONF on CUDA), and keep shapes "
    "the same.",
)
SHARE, MIN_BYTES = 0.25, 2**30


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    reserved = max((sample.reserved for sample in rank.trace.memory), default=0)
    allocated = max((sample.allocated for sample in rank.trace.memory), default=0)
    if reserved - allocated > max(MIN_BYTES, SHARE * reserved):
        what = f"{(reserved - allocated) / 2**30:.1f} of {reserved / 2**30:.1f} GiB reserved were never allocated"
        yield rule.advice(rank, what, 0.0, "peaks of the profiled steps; the first steps may have needed it")
