"""The files of a dump, in msprobe's layout. They are complete after every flush."""

from __future__ import annotations

import functools
import json
import linecache
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from npukit import __version__
from npukit.errors import NpukitError
from npukit.precision.recording.options import RecordOptions
from npukit.precision.recording.tensors import Text, joined, quoted
from npukit.report.writing import disk_errors_named

Frame = tuple[str, int, str]  # file, line, function
Noted = tuple[Text, tuple[Frame, ...], str | None]  # a row, its stack, and its parent row
_END = b"\n}}\n"


class StepFiles:
    """The files that one process writes for one step. The rank is looked up when it is first needed.

    >>> files = StepFiles(options, step=0)
    >>> files.begin(rank=0)
    >>> files.add({"Module.fc.Linear.forward.0": (["{}"], (), None)})
    >>> files.close()
    """

    def __init__(self, options: RecordOptions, step: int) -> None:
        self._step = Path(options.output) / f"step{step}"
        self._folder = self._tensors = self._step
        self._stacks: dict[tuple[Frame, ...], list[str]] = {}
        self._parents: dict[str, str | None] = {}
        self._options = options
        self._file: IO[bytes] | None = None
        self._empty = True

    def add(self, rows: Mapping[str, Noted]) -> None:
        """Append rows to dump.json, which is valid JSON again afterwards."""
        file = self._file
        assert file is not None
        text = ",\n".join(f"{quoted(name)}: {joined(row)}" for name, (row, _, _) in rows.items())
        file.seek(-len(_END), 2)
        file.write((b"\n" if self._empty else b",\n") + text.encode() + _END)
        file.flush()
        self._empty = False
        for name, (_, stack, parent) in rows.items():
            self._stacks.setdefault(stack, []).append(name)
            self._parents[name] = parent

    def save(self, name: str, tensor: Any, rank: int) -> str:
        """Write a tensor and return the name of its file."""
        import torch

        self.begin(rank)
        file = f"{name}.pt"
        torch.save(tensor.detach().cpu().contiguous().clone(), self._tensors / file)
        return file

    def close(self) -> None:
        """Write the files that describe the rows: where each was called from, and by which module."""
        if self._file is None:
            return
        self._file.close()
        stacks = {str(n): [names, frames_text(stack)] for n, (stack, names) in enumerate(self._stacks.items())}
        for name, content in (("stack.json", stacks), ("construct.json", self._parents)):
            file = self._folder / name
            with disk_errors_named(file):
                file.write_bytes(json.dumps(content).encode())

    def begin(self, rank: int) -> None:
        """Create the folder and an empty dump.json, if that has not happened yet."""
        if self._file is not None:
            return
        self._folder = self._step / f"rank{rank}"
        self._tensors = self._folder / "dump_tensor_data"
        try:
            (self._tensors if self._options.tensors else self._folder).mkdir(parents=True, exist_ok=True)
            self._file = (self._folder / "dump.json").open("wb+")
        except OSError as error:
            raise NpukitError(f"Cannot write {self._folder}: {(error.strerror or str(error)).lower()}.") from error
        head = {
            "task": "tensor" if self._options.tensors else "statistics",
            "level": "L0" if self._options.level == "modules" else "mix",
            "framework": "pytorch",
            "npukit": __version__,
            "dump_data_dir": str(self._tensors.resolve()) if self._options.tensors else None,
        }
        self._file.write(json.dumps(head)[:-1].encode() + b',\n"data": {' + _END)


def frames_text(stack: Sequence[Frame]) -> list[str]:
    """Stack frames in msprobe's format."""
    return [_frame_text(*frame) for frame in stack]


@functools.lru_cache(4096)
def _frame_text(file: str, line: int, name: str) -> str:
    return f"File {file}, line {line}, in {name}, \n {linecache.getline(file, line).strip()}"
