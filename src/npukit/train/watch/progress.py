"""The run on the terminal: a bar with figures, or plain lines in a file."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Any

from npukit.quiet import verbosity
from npukit.report.language import translated
from npukit.report.progress import time_left
from npukit.report.report import counted
from npukit.report.terminal import console
from npukit.report.wrapping import columns, padded
from npukit.train.watch.summary import Summary, size

SHOWN = 5  # figures beside the loss


def as_text(record: Mapping[str, Any], item: str, more: Mapping[str, float]) -> str:
    """The figures of a logging step in one short line; `more` are those that belong to its loss."""
    shown = sorted(more.items(), key=lambda figure: "/" in figure[0])[:SHOWN]  # the log has all
    parts = [f"loss {record['loss']:.4f}", *(f"{name} {value:.3g}" for name, value in shown)]
    parts += [f"grad {record['grad_norm']:.3g}", f"lr {record['learning_rate']:.2e}"]
    parts.append(f"{record['items_per_second']:,.0f} {item}/s")
    if record.get("utilisation") is not None:
        parts.append(f"mfu {record['utilisation']:.1%}")
    parts.append(size(record["memory_gib"]))
    if record["data_wait"] >= 0.01:
        parts.append(f"data wait {record['data_wait']:.0%}")
    return "  ".join(parts)


def _rows(summary: Summary) -> list[tuple[str, str]]:
    """The lines of the summary in the user's language; paths are not translated."""
    paths = (summary.output, summary.checkpoint)
    return [(translated(name), value if value in paths else translated(value)) for name, value in summary.rows()]


class LineProgress:
    """Plain lines for a file, a pipe or a job's log."""

    def __init__(self, total_steps: int, item: str) -> None:
        self._total = total_steps
        self._item = item

    def begin(self, start_step: int) -> None:
        if start_step >= self._total:
            self.say(
                f"the run has already completed all of {counted(self._total, 'step')}: train for more epochs or steps, "
                "or choose another output folder to start over"
            )
        elif start_step:
            self.say(f"resuming after step {start_step} of {self._total}")

    def step(self, step: int) -> None:
        pass

    def figures(self, record: Mapping[str, Any], more: Mapping[str, float]) -> None:
        left = time_left(record["seconds_left"])
        self.say(f"step {record['step']}/{self._total}  {as_text(record, self._item, more)}  {left}")

    def say(self, line: str) -> None:
        print(translated(line), flush=True)

    def leave(self) -> None:
        """End without a summary."""

    def end(self, summary: Summary) -> None:
        rows = _rows(summary)
        width = max(columns(name) for name, _ in rows)
        self.say("")
        for name, value in rows:
            self.say(f"{padded(name, width)}  {value}")


class Bar(LineProgress):
    """A progress bar with the time left and the newest figures."""

    def __init__(self, total_steps: int, item: str) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(total_steps, item)
        self._console = console()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}"),
            console=self._console,
            refresh_per_second=2,
        )
        self._task = self._progress.add_task(f"step 0/{total_steps}", total=total_steps, figures="")

    def begin(self, start_step: int) -> None:
        self._progress.update(self._task, completed=start_step)
        self._progress.start()
        atexit.register(self._progress.stop)  # restores the cursor after an error
        super().begin(start_step)

    def step(self, step: int) -> None:
        self._progress.update(self._task, completed=step, description=f"step {step}/{self._total}")

    def figures(self, record: Mapping[str, Any], more: Mapping[str, float]) -> None:
        self._progress.update(self._task, figures=as_text(record, self._item, more))

    def say(self, line: str) -> None:
        self._console.print(translated(line))

    def leave(self) -> None:
        self._progress.stop()

    def end(self, summary: Summary) -> None:
        from rich.table import Table

        self._progress.stop()
        table = Table(show_header=False, title=translated("Training run"), title_justify="left")
        for row in _rows(summary):
            table.add_row(*row)
        self._console.print(table)


class Quiet(LineProgress):
    """Only the summary."""

    def figures(self, record: Mapping[str, Any], more: Mapping[str, float]) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def end(self, summary: Summary) -> None:
        LineProgress(self._total, self._item).end(summary)


class Silence(LineProgress):
    """Nothing: for every rank but the first."""

    def say(self, line: str) -> None:
        pass


def open_progress(is_main: bool, total_steps: int, item: str) -> LineProgress:
    """The kind of progress for this rank and terminal."""
    if not is_main:
        return Silence(total_steps, item)
    if verbosity() == "quiet":
        return Quiet(total_steps, item)
    return (Bar if sys.stdout.isatty() else LineProgress)(total_steps, item)
