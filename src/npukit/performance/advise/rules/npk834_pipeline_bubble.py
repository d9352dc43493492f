"""A stage of the pipeline waits for its neighbours.

This counts the time of send and receive beyond what moving their data takes, batched or not. (The profiler's column
Bubble knows hcom_receive only, and is 0 where send and receive are batched.)

example:
    --global-batch-size 512 --micro-batch-size 1 --num-layers-per-virtual-pipeline-stage 2    # Megatron-LM
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npukit.performance.advise.communication import exposed_waiting, shared
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK834",
    "pipeline-bubble",
    needs=(),
    several=True,
    why="With p stages and m micro-batches, (p - 1) / (m + p - 1) of the step is waiting, and more where stages "
    "are uneven.",
    remedy="Use more micro-batches (a smaller micro-batch or a larger global batch), an interleaved schedule "
    "(virtual stages), fewer stages, and stages that take equally long.",
)


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    waits = exposed_waiting([share for share in shared(ranks) if share.collective.is_p2p])
    if not waits or max(waits.values()) <= 0:
        return
    rank = next(rank for rank in ranks if rank.trace.rank == max(waits, key=lambda number: waits[number]))
    ms = waits[rank.trace.rank]
    shown = ", ".join(f"rank {number} {wait:.0f} ms" for number, wait in sorted(waits.items())[:8])
    stages = rank.trace.parallel.get("pipeline")
    evidence = f"in send and receive: {shown}" + (f"; {stages} stages" if stages else "")
    what = f"Rank {rank.trace.rank} waits {ms:.1f} ms of each step for other stages of the pipeline"
    yield rule.advice(rank, what, ms, evidence, Confidence.high, ranks=sorted(waits))
