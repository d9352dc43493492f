"""Kernels take longer while a collective runs beside them.

Both want the same cores and the same memory bandwidth. The same kernel with the same shapes is compared with itself:
how long it takes alone, and how long beside communication.

example:
    export HCCL_OP_EXPANSION_MODE=AI_CPU      # compare with AIV
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import median

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.performance.read.model import Kernel, Shape, Work
from npukit.spans import Spans, length, overlap

rule = Rule(
    "NPK836",
    "contention",
    needs=("kernels", "shapes"),
    devices=("npu", "cuda"),
    several=True,
    why="Overlap hides communication, but slows down the kernels that run beside it.",
    remedy="Send fewer bytes (bf16 gradients, fewer micro-batches that communicate), and give collectives fewer cores: "
    "NCCL_MAX_CTAS on CUDA; on an NPU compare HCCL_OP_EXPANSION_MODE=AI_CPU with AIV, which runs them on the cores.",
)
ENOUGH = 3  # kernels on each side of a comparison
SLOWER = 1.1  # below it is noise


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    lost = 0.0
    worst: tuple[float, Kernel, float, float] | None = None
    for kernels in _alike(rank):
        alone = [kernel.duration for kernel in kernels if not _beside(kernel, rank.communicating)]
        beside = [kernel for kernel in kernels if _beside(kernel, rank.communicating) > kernel.duration / 2]
        if min(len(alone), len(beside)) < ENOUGH:
            continue
        usual, disturbed = median(alone), median(kernel.duration for kernel in beside)
        if disturbed < usual * SLOWER:
            continue
        here = (disturbed - usual) * len(beside)
        lost += here
        if worst is None or here > worst[0]:
            worst = here, beside[0], usual, disturbed
    if worst:
        _, kernel, usual, disturbed = worst
        what = "Kernels are slowed down by the communication that runs beside them"
        evidence = f"{kernel.type} takes {usual / 1000:.0f} us alone and {disturbed / 1000:.0f} us beside a collective"
        yield rule.advice(rank, what, rank.per_step(lost), evidence, Confidence.medium, line=kernel.stack)


def _alike(rank: Rank) -> Iterable[list[Kernel]]:
    """Kernels that do the same. On an NPU each has a name of its own, with a number."""
    groups: dict[tuple[str, tuple[Shape, ...]], list[Kernel]] = defaultdict(list)
    for kernel in rank.of(Work.compute):
        name = kernel.type if rank.trace.device == "npu" else kernel.name
        if kernel.shapes:  # without them, small and large ones would be compared
            groups[name, kernel.shapes].append(kernel)
    return groups.values()


def _beside(kernel: Kernel, spans: Spans) -> int:
    """How long a collective ran while the kernel did."""
    first = max(bisect_left(spans, (kernel.start, 0)) - 1, 0)
    last = bisect_left(spans, (kernel.end, 0))
    return length(overlap([(kernel.start, kernel.end)], spans[first:last]))
