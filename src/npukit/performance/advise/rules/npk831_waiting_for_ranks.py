"""Collectives wait for a rank that comes late.

All ranks leave a collective together, so the rank with the shortest collective arrived last: it is the slow rank. Where
only some ranks were profiled, the time of a collective beyond that of its bytes at the best rate of its group counts as
waiting.

example:
    npukit profile --profiler-level 2 --steps 10-12 --devices 8 -- python train.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npukit.performance.advise.communication import Shared, exposed_waiting, late_rank, shared
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK831",
    "waiting-for-ranks",
    needs=(),
    several=True,
    why="All ranks are as slow as the one that comes last, and their devices stand still while they wait.",
    remedy="Find out why that rank is late: its data loader, garbage collection, a longer batch, checkpoints or "
    "logging that only it writes, another process on its CPUs. Its own profile shows it.",
)


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    every = [share for share in shared(ranks) if not share.collective.is_p2p]
    waits = exposed_waiting(every)
    if not waits or max(waits.values()) <= 0:
        return
    rank = next(rank for rank in ranks if rank.trace.rank == max(waits, key=lambda number: waits[number]))
    ms = waits[rank.trace.rank]
    longest = max((share for share in every if share.rank is rank), key=lambda share: share.waiting)
    what = f"Collectives wait {ms:.1f} ms of each step for a rank that comes late{_who(ranks, every, ms)}"
    exposed = 100 * rank.split.communication / (rank.split.step or 1)
    evidence = f"{_shown(longest)}; exposed communication is {exposed:.0f}% of the step"
    uneven = rank.trace.parallel.get("pipeline", 1) > 1  # stages come late by design
    confidence = Confidence.high if len(ranks) > 1 and not uneven else Confidence.medium
    yield rule.advice(rank, what, ms, evidence, confidence, ranks=sorted(waits))


def _who(ranks: Sequence[Rank], every: Sequence[Shared], ms: float) -> str:
    world = max((rank.trace.world or 0 for rank in ranks), default=0)
    world = max(world, max((len(share.collective.ranks) for share in every), default=0), _linked(ranks))
    late = late_rank(every)
    if len(ranks) < world and (late is None or late[1] < ms / 2):
        return f": none of the {len(ranks)} profiled, but one of the other {world - len(ranks)}"
    return f": rank {late[0]}" if late and late[1] >= ms / 2 else ""


def _linked(ranks: Sequence[Rank]) -> int:
    return len({number for rank in ranks for link in rank.trace.links for number in (link.source, link.target)})


def _shown(share: Shared) -> str:
    size = f" of {share.collective.bytes / 1e6:.1f} MB" if share.collective.bytes else ""
    takes, moving = share.collective.duration / 1e6, share.moving / 1e6
    return f"{share.collective.op}{size} takes {takes:.1f} ms, moving it {moving:.1f} ms"
