"""The device waits for the host to hand over work: Python, the framework and the launches take longer than the kernels.

This counts the time in which the device did nothing and the call that launches the next kernel had not returned yet,
less what the data loader, garbage collection, files, loops over rows, synchronising calls, allocations and compilation
explain. On the CPU it is the time between operators. Where `npukit profile` recorded, the lines of the script that took
most of it are named. They may be of another thread, since Python runs in one thread at a time.

example:
    export TASK_QUEUE_ENABLE=2                # npukit launch sets this, and binds ranks to CPUs
    npukit launch --devices 8 train.py
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import loops, shown
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule
from npukit.performance.read.model import Work

rule = Rule(
    "NPK801",
    "host-bound",
    needs=("kernels", "host"),
    why="While the device waits for the host, faster kernels do not shorten the step.",
    remedy="Do more per launch: larger batches, fused operators, torch.compile. On an NPU also try "
    "TASK_QUEUE_ENABLE=2 and bind the ranks to the CPUs near their cards, as `npukit launch` does.",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    ms = rank.host_causes["launch"] - sum(loop.gaps for loop in loops(rank))
    kernels = rank.of(Work.compute, Work.aicpu)
    if not kernels or ms <= 0:
        return
    average_us = rank.time_of(kernels) / (len(kernels) / rank.steps) * 1000
    noun = "operators" if rank.trace.device == "cpu" else "kernels"
    evidence = f"{len(kernels) / rank.steps:.0f} {noun} per step of {average_us:.0f} us each"
    where = "Python between operators takes" if rank.trace.device == "cpu" else "The device waits for the host for"
    lines = rank.lines_of(rank.host_waits["launch"])
    looped = {line for loop in loops(rank) for line in loop.lines}
    lines = {line: taken for line, taken in lines.items() if line not in looped}
    evidence += f"; most at {shown(lines, rank)}" if lines else ""
    in_others = rank.script.in_other_threads(rank.host_waits["launch"])
    others = {line: rank.per_step(taken) for line, taken in in_others.items()}
    if sum(others.values()) > ms / 2:
        evidence += f"; another thread runs Python meanwhile: {shown(others, rank)}"
        lines = others
    yield rule.advice(rank, f"{where} {ms:.1f} ms of each step", ms, evidence, line=next(iter(lines), ""))
