"""How far a long piece of work is: a bar on a terminal, a line now and then in a log, both with the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from npukit.quiet import verbosity
from npukit.report.language import translated
from npukit.report.terminal import console, say

OnProgress = Callable[[int, int], None]  # how much is done, of how much in all (0: not known)
BETWEEN_LINES = 5.0  # seconds
ENOUGH = 0.05  # of the work, to tell from it how long the rest takes


@contextmanager
def progress(what: str, unit: str) -> Iterator[OnProgress]:
    """Show how far `what` is, in "rows" or "bytes"; the first rank of a job does it for all.

    >>> with progress("exporting", "bytes") as on_progress:
    ...     on_progress(10, 2000)
    """
    stream = console(sys.stderr)
    if verbosity() == "quiet" or os.environ.get("LOCAL_RANK", "0") != "0":
        yield lambda done, total: None
    elif not stream.is_terminal:
        yield lines(what, unit, say)
    else:
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as TimeLeft

        amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
        with Progress(
            TextColumn(translated(what)), BarColumn(), amount, TimeLeft(), console=stream, transient=True
        ) as bar:
            task = bar.add_task("", total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total or None)


def lines(what: str, unit: str, log: Callable[[str], None]) -> OnProgress:
    """A line every few seconds, for those who look at a log.

    >>> on_progress = lines("tokenising a.jsonl", "rows", print)
    >>> on_progress(2_000, 120_000)
    """
    last_line = time.monotonic()
    first: tuple[float, int] | None = None  # when the first part was done, which also waits for what is set up

    def on_progress(done: int, total: int) -> None:
        nonlocal last_line, first
        if not done:
            return
        now = time.monotonic()
        began, before = first = first or (now, done)
        if now - last_line < BETWEEN_LINES:
            return
        last_line = now
        if done < total:
            amount = f"{done / total:.0%}" if unit == "bytes" else translated(f"{done:,} of {total:,} {unit}")
            is_enough = done - before >= ENOUGH * total
            left = f", {time_left((now - began) / (done - before) * (total - done))}" if is_enough else ""
            log(f"{translated(what)}: {amount}{left}")
        else:
            log(f"{translated(what)}: {done:,} {translated(unit)}")

    return on_progress


def time_left(seconds: float) -> str:
    """How long something still takes, in the user's language.

    >>> time_left(75)
    '1 min 15 s left'
    """
    return translated(f"{duration(seconds)} left")


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(3725)
    '1 h 2 min'
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
