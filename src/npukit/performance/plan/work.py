"""The shortest and longest time of work: a roofline model of what a step computes, moves and exchanges."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from npukit.facts.planning import Planning, Range, Speed, planning

Kind = Literal["matmul", "attention", "vector", "collective"]


@dataclass(frozen=True)
class PlannedWork:
    """Operators of one kind and size, all calls together."""

    kind: Kind
    flops: float
    bytes: float  # bytes read and written; for a collective, sent by one rank
    calls: float  # weighted by the host's cost: an operator that costs twice as much counts as two

    def times(self, number: float) -> PlannedWork:
        """This work, repeated."""
        return PlannedWork(self.kind, self.flops * number, self.bytes * number, self.calls * number)


@dataclass(frozen=True)
class StepTime:
    """The duration of an optimizer step in seconds, in total and by part, as ranges."""

    compute: Range
    memory: Range
    host: Range
    collectives: Range
    step: Range

    def tokens_per_second(self, tokens: float) -> Range:
        """The range of the speed for this many tokens per step."""
        return tokens / self.step[1], tokens / self.step[0]


def step_time(
    work: Iterable[PlannedWork], speed: Speed, between_servers: bool = False, assumed: Planning | None = None
) -> StepTime | None:
    """The time of one step of one rank; None if ranks communicate and the speed of their links is unknown.

    >>> step_time([Work("matmul", 1e14, 1e9, 100)], speed_of("910B3")).step
    (0.4521…, 0.6781…)
    """
    work, assumed = list(work), assumed or planning()
    link = speed.network if between_servers else speed.link
    if not link and any(item.kind == "collective" and item.bytes for item in work):
        return None
    fast, slow = (_bound(work, speed, link, assumed, slow) for slow in (False, True))
    parts = {name: (fast[name], slow[name]) for name in fast}
    return StepTime(**parts)


def _bound(work: list[PlannedWork], speed: Speed, link: float, assumed: Planning, slow: bool) -> dict[str, float]:
    share, cost = (0, 1) if slow else (1, 0)  # the lower share of a peak is the slow case, the higher cost is
    compute = memory = host = collectives = 0.0
    for item in work:
        host += item.calls * assumed.launch_us[cost] * 1e-6
        if item.kind == "collective":
            moving = item.bytes / (link * assumed.communication[share]) if item.bytes else 0.0
            collectives += moving + item.calls * assumed.collective_us[cost] * 1e-6
            continue
        reached = assumed.attention if item.kind == "attention" else assumed.compute
        computing = item.flops / (speed.flops * reached[share])
        moving = item.bytes / (speed.bandwidth * assumed.memory[share])
        if computing >= moving:
            compute += computing
        else:
            memory += moving
    device = compute + memory
    exposed = collectives * (1 - assumed.overlap[share])
    step = max(device, host) + max(exposed, collectives - device)
    return {"compute": compute, "memory": memory, "host": host, "collectives": collectives, "step": step}
