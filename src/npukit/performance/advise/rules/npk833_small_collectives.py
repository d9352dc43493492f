"""Many collectives of a few bytes each.

A collective costs tens of microseconds before its first byte moves, so one of a kilobyte takes nearly as long as one of
a megabyte.

example:
    model = DistributedDataParallel(model, bucket_cap_mb=200)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from npukit.performance.advise.communication import exposed_time, shared
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK833",
    "small-collectives",
    needs=("sizes",),
    several=True,
    why="Starting costs more than moving the data.",
    remedy="Send tensors together: larger bucket_cap_mb for DDP, torch.cat or all_reduce_coalesced for your own; "
    "reduce metrics every N steps instead of in every one.",
)
SMALL, MANY = 262_144, 8  # bytes; per step


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    every = [share for share in shared(ranks) if share.collective.bytes and share.collective.bytes < SMALL]
    counts = Counter(share.rank.trace.rank for share in every)
    for rank in ranks[:1]:
        count = counts[rank.trace.rank] / rank.steps
        if count < MANY:
            return
        mine = [share.collective for share in every if share.rank is rank]
        ms = exposed_time(rank, mine)
        size = sum(collective.bytes or 0 for collective in mine) / len(mine)
        kind = Counter(collective.op for collective in mine).most_common(1)[0][0]
        evidence = f"{count:.0f} per step of {size / 1024:.1f} KiB on average, mostly {kind}"
        what = f"Small collectives take {ms:.1f} ms of each step"
        yield rule.advice(rank, what, ms, evidence, Confidence.medium, ranks=sorted(counts))
