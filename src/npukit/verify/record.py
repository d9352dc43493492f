"""Write down every operator that a project calls, from which line, and a few figures of what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MOST = 50_000
# They compute nothing, and each device uses them as it likes.
# fmt: off
_SKIPPED = {
    "detach", "empty", "empty_like", "empty_strided", "new_empty", "_to_copy", "copy_", "clone", "contiguous",
    "lift_fresh", "alias", "t", "transpose", "view", "_unsafe_view", "_reshape_alias", "reshape", "expand",
    "permute", "unsqueeze", "squeeze", "select", "slice", "split", "split_with_sizes",
}
# fmt: on


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records until the script ends, or the first 50,000 operators.

    >>> with Recorder(Path.cwd(), Path("record.jsonl")): ...
    """

    def __init__(self, project: Path, file: Path) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._project = str(project.resolve()) + "/"
        self._lines: dict[int, str] = {}  # of the forward operator, by autograd's sequence number
        self._file = file.open("w")
        self._count = 0

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._file.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if self._count < MOST and name not in _SKIPPED:
            self._count += 1
            self._write(name, result)
        return result

    def _write(self, name: str, result: Any) -> None:
        node = torch._C._current_autograd_node()
        if node is not None:
            line = self._lines.get(node._sequence_nr(), "")
        else:
            line = self._line()
            self._lines[torch._C._autograd._get_sequence_nr() - 1] = line
        first = result[0] if isinstance(result, (tuple, list)) and result else result
        record = [name, line, node is not None, figures(first) if isinstance(first, torch.Tensor) else None]
        self._file.write(json.dumps(record) + "\n")

    def _line(self) -> str:
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._project):
                return f"{frame.f_code.co_filename.removeprefix(self._project)}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""


def figures(tensor: torch.Tensor) -> list[float] | None:
    """A tensor's length as a vector, and how far it points in one fixed direction: other values rarely share both."""
    if tensor.is_complex() or tensor.numel() == 0 or tensor.is_meta:
        return None
    values = tensor.detach().cpu().double().flatten()
    direction = torch.arange(values.numel(), dtype=torch.float64).add_(1).cos_()
    return [values.norm().item(), torch.dot(values, direction).item()]
