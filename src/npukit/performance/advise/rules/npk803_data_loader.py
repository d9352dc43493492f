"""The step waits for the next batch.

This counts the time in which the device did nothing while the training loop was inside of the DataLoader's `next`. In a
profile with a single step, it is the time before the step's first kernel. A log.jsonl of `npukit train` gives the share
over a whole run.

example:
    DataLoader(data, batch_size=32, num_workers=4, persistent_workers=True, pin_memory=True, prefetch_factor=4)
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import shown
from npukit.performance.advise.rank import LOADER, Rank
from npukit.performance.advise.rule import Advice, Confidence, Rule
from npukit.spans import length, union

rule = Rule(
    "NPK803",
    "data-loader",
    needs=("host",),
    why="Batches are prepared more slowly than they are consumed.",
    remedy="Give the DataLoader num_workers (2 to 8 for each rank) with persistent_workers=True and pin_memory=True, "
    "raise prefetch_factor, and do expensive transformations once, before training.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    if (rank.has_timeline and rank.steps > 1) or rank.trace.device == "cpu":
        ms = rank.host_causes["loader"]
        confidence = Confidence.high
    else:
        ms, confidence = _before_first_kernel(rank), Confidence.medium
    marks = [mark for mark in rank.trace.marks if mark.name.startswith(LOADER)]
    if not marks or ms <= 0:
        return
    alone = any("SingleProcess" in mark.name for mark in marks)
    evidence = "it has no workers: _SingleProcessDataLoaderIter" if alone else marks[0].name
    line = next((mark.stack for mark in marks if mark.stack), "")
    lines = rank.lines_of(rank.host_waits["loader"])
    lines.pop(line, None)
    evidence += f"; most at {shown(lines, rank)}" if lines else ""
    yield rule.advice(rank, f"Each step waits {ms:.1f} ms for its batch", ms, evidence, confidence, line=line)


def _before_first_kernel(rank: Rank) -> float:
    steps, (start, _) = rank.trace.steps, rank.window
    if not steps:
        return 0.0
    inside = ((mark.start, min(mark.end, start)) for mark in rank.trace.marks if mark.name.startswith(LOADER))
    return rank.per_step(length(union(span for span in inside if span[0] < span[1])))
