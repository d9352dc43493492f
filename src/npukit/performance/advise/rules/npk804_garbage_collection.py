"""Python's garbage collector runs in the middle of steps.

A collection of all generations walks every object of the process: with a large model's modules, configurations and
cached data this takes tens to hundreds of milliseconds, and the device runs out of work meanwhile.

example:
    gc.collect(); gc.freeze(); gc.disable()   # after the model and the data are made
    if step % 500 == 0:
        gc.collect(0)
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.report.report import counted

rule = Rule(
    "NPK804",
    "garbage-collection",
    needs=("gc",),
    why="Garbage collection starts at arbitrary times, different on each rank, and all ranks wait for the one that "
    "collects.",
    remedy="Call gc.freeze() and gc.disable() after setting up, and gc.collect(0) every few hundred steps; look for "
    "a gc.collect() or torch.npu.empty_cache() in the loop.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    ms, count = rank.host_causes["gc"], len(rank.collecting)
    if ms > 0:
        longest = max(end - start for start, end in rank.collecting) / 1e6
        evidence = f"{counted(count, 'collection')} in {counted(rank.steps, 'step')}, the longest {longest:.1f} ms"
        lines = rank.lines_of(rank.host_waits["gc"])
        yield rule.advice(
            rank, f"Garbage collection holds up each step by {ms:.1f} ms", ms, evidence, line=next(iter(lines), "")
        )
