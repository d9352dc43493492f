"""Show the progress of long work: a bar on a terminal, occasional lines in a log, both with the time left."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from npukit.quiet import verbosity
from npukit.report.language import translated
from npukit.report.terminal import console, say

OnProgress = Callable[[int, int], None]  # the amount done, and the total (0 if unknown)
BETWEEN_LINES = 5.0  # seconds between lines
ENOUGH = 0.05  # share of the work needed to estimate the time left


@contextmanager
def progress(what: str, unit: str) -> Iterator[OnProgress]:
    """Show the progress of `what`, in "rows" or "bytes". In a job, only the first rank does.

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
    """A line every few seconds, for logs.

    >>> on_progress = lines("tokenising a.jsonl", "rows", print)
    >>> on_progress(2_000, 120_000)
    """
    last_line = time.monotonic()
    first: tuple[float, int] | None = None  # when the first part was done: it includes set-up

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
    """The time left, in the user's language.

    >>> time_left(75)
    '1 min 15 s left'
    """
    return translated(f"{duration(seconds)} left")


def duration(seconds: float) -> str:
    """A duration as people write it.

    >>> duration(3725)
    '1 h 2 min'
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
