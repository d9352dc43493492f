"""The files of a dump, in msprobe's layout; each flush leaves them complete."""

from __future__ import annotations

import json
import linecache
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from npukit import __version__
from npukit.errors import NpukitError
from npukit.precision.recording.options import Options
from npukit.precision.recording.tensors import Described
from npukit.report.writing import write_json

Frame = tuple[str, int, str]  # file, line, function
_END = b"\n}}\n"


class StepFiles:
    """What one process writes of one step.

    >>> with StepFiles(options, step=0, rank=0) as files:
    ...     files.add({"Module.fc.Linear.forward.0": row})
    """

    def __init__(self, options: Options, step: int, rank: int) -> None:
        self.folder = Path(options.output) / f"step{step}" / f"rank{rank}"
        self._tensors = self.folder / "dump_tensor_data"
        self._stacks: dict[tuple[Frame, ...], list[str]] = {}
        self._parents: dict[str, str | None] = {}
        self._options = options
        self._file: IO[bytes] | None = None
        self._empty = True

    def add(
        self, rows: Mapping[str, Any], stacks: Mapping[str, tuple[Frame, ...]], parents: Mapping[str, str | None]
    ) -> None:
        """Append rows to dump.json, which is valid JSON again afterwards."""
        file = self._file or self._begin()
        text = ",\n".join(f"{json.dumps(name)}: {json.dumps(row, default=_plain)}" for name, row in rows.items())
        if text:
            file.seek(-len(_END), 2)
            file.write((b"\n" if self._empty else b",\n") + text.encode() + _END)
            file.flush()
            self._empty = False
        for name, stack in stacks.items():
            self._stacks.setdefault(stack, []).append(name)
        self._parents.update(parents)

    def save(self, name: str, tensor: Any) -> str:
        """Write a tensor; returns the name of its file."""
        import torch

        if self._file is None:
            self._begin()
        file = f"{name}.pt"
        torch.save(tensor.detach().cpu().contiguous().clone(), self._tensors / file)
        return file

    def close(self) -> None:
        """Write what explains the rows: where each was called from, and by which module."""
        if self._file is None:
            return
        self._file.close()
        stacks = {str(n): [names, frames_text(stack)] for n, (stack, names) in enumerate(self._stacks.items())}
        write_json(self.folder / "stack.json", stacks)
        write_json(self.folder / "construct.json", self._parents)

    def _begin(self) -> IO[bytes]:
        try:
            (self._tensors if self._options.tensors else self.folder).mkdir(parents=True, exist_ok=True)
            self._file = (self.folder / "dump.json").open("wb+")
        except OSError as error:
            raise NpukitError(f"Cannot write {self.folder}: {(error.strerror or str(error)).lower()}.") from error
        head = {
            "task": "tensor" if self._options.tensors else "statistics",
            "level": "L0" if self._options.level == "modules" else "mix",
            "framework": "pytorch",
            "npukit": __version__,
            "dump_data_dir": str(self._tensors.resolve()) if self._options.tensors else None,
        }
        self._file.write(json.dumps(head)[:-1].encode() + b',\n"data": {' + _END)
        return self._file


def frames_text(stack: Sequence[Frame]) -> list[str]:
    """Frames in msprobe's words."""
    return [
        f"File {file}, line {line}, in {name}, \n {linecache.getline(file, line).strip()}" for file, line, name in stack
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Described):
        return value.plain()
    if isinstance(value, Iterable):
        return list(value)
    return str(value)
