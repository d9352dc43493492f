"""Files are written in the middle of steps: checkpoints, predictions, logs, pictures.

This counts the time in which the device did nothing while a line of the script wrote files, or a library did so.

example:
    if step % 1000 == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
"""

from __future__ import annotations

from collections.abc import Iterator

from npukit.performance.advise.lines import shown
from npukit.performance.advise.rank import Rank
from npukit.performance.advise.rule import Advice, Rule

rule = Rule(
    "NPK808",
    "files-written-in-step",
    needs=("kernels", "script"),
    why="A disk is thousands of times slower than a step's arithmetic, and the next step waits until it is done.",
    remedy="Write every few hundred or thousand steps (save_steps, logging_steps), keep rows and write them together, "
    "and save from another thread (torch.distributed.checkpoint.async_save).",
)


@rule.on_rank
def check(rank: Rank) -> Iterator[Advice]:
    ms = rank.host_causes["write"]
    if ms <= 0:
        return
    lines = rank.lines_of(rank.host_waits["write"])
    start, end = rank.window
    calls = sorted({name for begin, _, name in rank.script.written if start <= begin < end})
    evidence = shown(lines, rank) + (f"; calls {', '.join(calls[:3])}" if calls else "")
    what = f"Writing files holds up each step by {ms:.1f} ms"
    yield rule.advice(rank, what, ms, evidence, line=next(iter(lines), ""))
