"""Ranks compute for different lengths of time.

The causes are stages of a pipeline with more layers (or the vocabulary), experts that get more tokens, and batches with
longer sequences.

example:
    sampler = sorted(range(len(data)), key=lambda i: len(data[i]))    # rows of similar length together
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule

rule = Rule(
    "NPK835",
    "load-imbalance",
    needs=("ranks",),
    several=True,
    why="The ranks that finish first wait for the one with the most work.",
    remedy="Give each pipeline stage the same amount of work (the embedding and the loss count as layers), sort "
    "sequences so that each rank gets the same number of tokens, and balance experts.",
)
UNEVEN = 0.05


@rule.on_job
def check(ranks: Sequence[Rank]) -> Iterator[Advice]:
    times = {rank.trace.rank: rank.split.compute for rank in ranks if rank.split.step}
    if len(times) < 2:
        return
    most, mean = max(times.values()), sum(times.values()) / len(times)
    if mean <= 0 or (most - mean) / mean < UNEVEN:
        return
    rank = next(rank for rank in ranks if rank.split.compute == most)
    shown = ", ".join(f"rank {number} {ms:.0f} ms" for number, ms in sorted(times.items())[:8])
    what = f"Rank {rank.trace.rank} computes {most:.1f} ms of each step, the ranks on average {mean:.1f} ms"
    yield rule.advice(rank, what, most - mean, shown, Confidence.medium, ranks=sorted(times))
