"""Data moves between ranks while nothing is computed.

This counts only the time that moving the data takes; waiting for ranks that come late is NPK831.

example:
    with contextlib.nullcontext() if last else model.no_sync():
        loss.backward()
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from npukit.performance.advise.communication import exposed_time, exposed_waiting, shared
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK830",
    "exposed-communication",
    needs=(),
    several=True,
    why="Communication is free while it overlaps with computation, and costs its whole time where it does not.",
    remedy="Let it overlap with the backward pass (DDP's buckets, FSDP's prefetch), send fewer bytes (bf16 "
    "gradients), and accumulate gradients over more micro-batches, with no_sync() on all but the last.",
)


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    every = [share for share in shared(ranks) if not share.collective.is_p2p]
    waiting = exposed_waiting(every)
    by_rank: dict[int, float] = {}
    for rank in ranks:
        if mine := [share.collective for share in every if share.rank is rank]:
            by_rank[rank.trace.rank] = max(0.0, exposed_time(rank, mine) - waiting[rank.trace.rank])
    names = Counter[str]()
    for share in every:
        names[share.collective.op] += share.moving
    if not by_rank:
        return
    worst = max(by_rank, key=lambda rank: by_rank[rank])
    rank, ms = next(rank for rank in ranks if rank.trace.rank == worst), by_rank[worst]
    exposed = 100 * rank.split.communication / (rank.split.step or 1)
    what = f"Moving data between ranks takes {ms:.1f} ms of each step that nothing hides"
    if not any(collective.bytes for rank in ranks for collective in rank.trace.collectives):
        what = f"Communication takes {ms:.1f} ms of each step that nothing hides: moving data, or waiting"
    evidence = f"mostly {names.most_common(1)[0][0]}; all exposed communication is {exposed:.0f}% of the step"
    yield rule.advice(rank, what, ms, evidence, Confidence.medium, ranks=sorted(by_rank))
