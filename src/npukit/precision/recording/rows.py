"""Collect the rows of a step and write them to disk."""

from __future__ import annotations

import os
from collections import Counter

import torch
from torch import Tensor

from npukit.precision.recording.files import Frame, Noted, StepFiles
from npukit.precision.recording.options import RecordOptions
from npukit.precision.recording.tensors import Tensors, Text
from npukit.precision.recording.writer import BackgroundWriter

_FLUSH = 4096  # tensors whose statistics are fetched together


class StepRows:
    """The rows of the current step, and whether this step is recorded at all."""

    def __init__(self, options: RecordOptions) -> None:
        self.options = options
        self.running = False
        self.step = 0
        self.calls: Counter[str] = Counter()  # calls in this step, by name
        self.path = ""  # the module whose tensors are being described
        self.holds = False  # a row is still waiting for a tensor, so nothing may be written
        self.tensors = Tensors(self._save if options.tensors else None, options.level == "ops", options.fresh)
        self._writer = BackgroundWriter()
        self._files = StepFiles(options, 0)
        self._rows: dict[str, Noted] = {}
        self._count = 0

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    @property
    def recording(self) -> bool:
        """Whether this step of this process is to be recorded."""
        options = self.options
        return (
            self.running
            and (options.max_rows is None or self._count < options.max_rows)
            and (options.steps is None or self.step in options.steps)
            and (options.ranks is None or rank() in options.ranks)
        )

    def begin_step(self, number: int) -> None:
        self.step = number
        self._files = StepFiles(self.options, number)
        self.calls.clear()
        self.tensors.begin_step()

    def end_step(self) -> None:
        on_device = self.flush()
        self._writer.do(self._files.close, now=not on_device)
        self.tensors.forget()

    def finish(self) -> None:
        """Wait until all rows so far have been written. Later ones are written immediately."""
        self._writer.finish()

    def add(self, name: str, row: Text, stack: tuple[Frame, ...], parent: str | None) -> None:
        """Add a row, and write the rows once there are many. A row that is added twice keeps its last position."""
        self._rows.pop(name, None)
        self._rows[name] = row, stack, parent
        self._count += 1
        if not self.holds and self.tensors.waiting >= _FLUSH:
            self.flush()

    def flush(self) -> bool:
        """Write the rows. Returns whether this continues in the background, because figures come from a device."""
        (fill, on_device), files, rows = self.tensors.fetch(), self._files, self._rows
        if rows:
            files.begin(rank())
        self._rows = {}

        def write() -> None:
            fill()
            if rows:
                files.add(rows)

        self._writer.do(write, now=not on_device)
        return on_device

    def _save(self, name: str, tensor: Tensor) -> str:
        only = self.options.only
        return self._files.save(name, tensor, rank()) if not only or below(self.path, only) else ""


def below(path: str, only: str) -> bool:
    """Whether a module is the requested one or lies below it."""
    return path == only or path.startswith(f"{only}.")


def rank() -> int:
    """The rank of this process in its job."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))
