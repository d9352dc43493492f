"""Divide the time of collectives into waiting for other ranks and moving data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from npukit.performance.advise.rank import Rank
from npukit.performance.read.model import Collective
from npukit.spans import Spans, length, overlap, union

START_NS = 30_000  # the shortest time of a collective
LARGE = 1_000_000  # bytes; collectives of at least this size show the speed of their group


@dataclass(frozen=True)
class Shared:
    """One collective of one rank, with the time for moving its data."""

    rank: Rank
    collective: Collective
    moving: int

    @property
    def waiting(self) -> int:
        return max(0, self.collective.duration - self.moving)


def shared(ranks: Sequence[Rank]) -> list[Shared]:
    """Every collective, with its time divided into moving and waiting.

    Moving takes as long as on the rank that arrived last, and at most as long as its bytes take at the best rate that
    the same kind of collective reached in its group.
    """
    shortest: dict[tuple[str, int], int] = {}
    rates: dict[str, float] = defaultdict(float)
    keyed = [(rank, collective, key) for rank in ranks for collective, key in _keyed(rank)]
    seen: dict[tuple[str, int], set[int]] = defaultdict(set)
    for rank, collective, key in keyed:
        shortest[key] = min(collective.duration, shortest.get(key, collective.duration))
        seen[key].add(rank.trace.rank)
        if collective.bytes and collective.bytes >= LARGE and collective.duration:
            rates[key[0]] = max(rates[key[0]], collective.bytes / collective.duration)
    shares = []
    for rank, collective, key in keyed:
        moving = shortest[key] if len(seen[key]) > 1 else collective.duration
        if collective.bytes is not None and rates[key[0]]:
            moving = min(moving, round(collective.bytes / rates[key[0]]) + START_NS)
        elif collective.waited is not None:
            moving = min(moving, max(START_NS, collective.duration - collective.waited))
        shares.append(Shared(rank, collective, moving))
    return shares


def _keyed(rank: Rank) -> list[tuple[Collective, tuple[str, int]]]:
    """Each collective with a key that is the same on every rank: kind, group and index."""
    start, end = rank.window if rank.has_timeline else (0, 1 << 63)
    counts: dict[str, int] = defaultdict(int)
    keyed = []
    for collective in sorted(rank.trace.collectives, key=lambda call: call.start):
        if start <= collective.start <= end:
            kind = f"{collective.op}@{collective.group}"
            keyed.append((collective, (kind, counts[kind])))
            counts[kind] += 1
    return keyed


def exposed_waiting(every: Sequence[Shared]) -> dict[int, float]:
    """Milliseconds of a step in which each rank only waits for others; overlapping collectives count once."""
    spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
    ranks = {share.rank.trace.rank: share.rank for share in every}
    for share in every:
        start = share.collective.start
        spans[share.rank.trace.rank].append((start, start + share.waiting))
    return {number: ranks[number].per_step(length(_exposed(ranks[number], waits))) for number, waits in spans.items()}


def exposed_time(rank: Rank, collectives: Iterable[Collective]) -> float:
    """Milliseconds of a step in which only these collectives run."""
    return rank.per_step(length(_exposed(rank, [(collective.start, collective.end) for collective in collectives])))


def _exposed(rank: Rank, spans: Spans) -> Spans:
    return overlap(rank.exposed, union(spans)) if rank.has_timeline else union(spans)


def late_rank(every: Sequence[Shared]) -> tuple[int, float] | None:
    """The slow rank, which waits least, and how many ms per step less than the others."""
    waits: dict[int, float] = defaultdict(float)
    for share in every:
        waits[share.rank.trace.rank] += share.rank.per_step(share.waiting)
    if len(waits) < 2:
        return None
    late = min(waits, key=lambda rank: waits[rank])
    others = [ms for rank, ms in waits.items() if rank != late]
    return late, sum(others) / len(others) - waits[late]
