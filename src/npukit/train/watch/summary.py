"""The summary of a run, for people and for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from npukit.report.markdown import cell
from npukit.report.progress import duration
from npukit.report.writing import write_text
from npukit.train.watch.files import as_json


@dataclasses.dataclass(frozen=True)
class Summary:
    """A finished run. The times and items of a resumed run include its earlier parts.

    `seconds` is the whole time and `pauses` the part for evaluations and checkpoints, which speeds exclude.
    """

    reason: str
    exit_code: int  # of the command, see docs/reference/exit-codes.md
    steps: int
    total_steps: int
    epochs: float
    seconds: float
    pauses: float
    item: str
    items: int
    items_per_second: float
    utilisation: float | None
    data_wait: float
    device: str
    world_size: int
    memory_gib: float
    first_loss: float | None
    last_loss: float | None
    evaluation: dict[str, float]
    best: str | None
    best_checkpoint: str | None
    model_step: int | None  # the step whose model is in the output folder, if any
    checkpoint: str | None
    output: str
    notes: tuple[str, ...]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Its lines: name and value."""
        yield "result", self.reason
        yield "steps", f"{self.steps:,} of {self.total_steps:,} ({self.epochs:.2f} epochs)"
        paused = f", including {duration(self.pauses)} for evaluations and checkpoints" if self.pauses >= 0.1 else ""
        yield "time", duration(self.seconds) + paused
        if self.first_loss is not None:
            yield "loss", f"{self.first_loss:.4f} → {self.last_loss:.4f}"
        if self.evaluation:
            yield "evaluation", ", ".join(f"{name} {value:.4f}" for name, value in self.evaluation.items())
        if self.best:
            yield "best", self.best + (f", in {self.best_checkpoint}" if self.best_checkpoint else "")
        yield "speed", f"{self.items_per_second:,.0f} {self.item}/s ({self.items:,} {self.item})"
        if self.utilisation is not None:
            yield "utilisation", f"{self.utilisation:.1%} of the device's peak"
        yield "data wait", f"{self.data_wait:.1%} of the time"
        yield "device", f"{self.world_size} x {self.device}"
        yield "memory", f"{size(self.memory_gib)} at peak" + (" on the first device" if self.world_size > 1 else "")
        if self.checkpoint:
            yield "checkpoint", self.checkpoint
        yield "output", self.output + (f" (the model of step {self.model_step:,})" if self.model_step else "")
        yield from (("note", note) for note in self.notes)

    def write(self, folder: Path) -> None:
        """summary.json for programs, summary.md for people."""
        write_text(folder / "summary.json", as_json(dataclasses.asdict(self), indent=2))
        lines = [
            "# Training run",
            "",
            "| | |",
            "|---|---|",
            *(f"| {name} | {cell(value)} |" for name, value in self.rows()),
        ]
        write_text(folder / "summary.md", "\n".join(lines) + "\n")


def size(gib: float) -> str:
    """A number of bytes with its unit.

    >>> size(0.25)
    '256 MiB'
    """
    if gib >= 1:
        return f"{gib:.1f} GiB"
    return f"{gib * 2**10:.0f} MiB" if gib >= 2**-10 else f"{gib * 2**20:.0f} KiB"
