"""The .pkl of ptdbg_ascend, msprobe's predecessor: despite its name, one JSON list per line, and read only as such."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.precision.dump import Call, Dump, Value

_ROW = re.compile(
    r"(?P<prefix>[A-Za-z]+)_(?P<op>.+)_(?P<number>\d+)_(?P<direction>forward|backward)_(?P<side>input|output)(?P<place>[\w.]*)"
)


def read_ptdbg(file: Path) -> Dump:
    """The rows of a ptdbg .pkl.

    >>> read_ptdbg(Path("api_stack_dump.pkl")).calls[0].op
    'conv2d'
    """
    calls: dict[str, dict[str, Any]] = {}
    try:
        lines = file.read_bytes().decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise NpukitError(
            f"{file} is a real pickle, which could run code when it is read: only ptdbg's text form is read."
        ) from None
    except OSError as error:
        raise NpukitError(f"Cannot read {file}: {(error.strerror or str(error)).lower()}.") from None
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line) if line.strip() else []
        except (ValueError, RecursionError):
            raise NpukitError(f"{file} is not a ptdbg dump: line {number} is not JSON.") from None
        if isinstance(row, list) and len(row) >= 6 and isinstance(row[0], str) and (match := _ROW.fullmatch(row[0])):
            key = row[0].rpartition(f"_{match['side']}")[0]
            call = calls.setdefault(key, {"found": match, "input": {}, "output": {}})
            if value := _value(row):
                call[match["side"]][match["place"].strip("_.") or "0"] = value
    if not calls:
        raise NpukitError(f"{file} is not a ptdbg dump: it has no row with a tensor.")
    return Dump(file, tuple(_call(name, **call) for name, call in calls.items()), source="ptdbg")


def _call(name: str, match: re.Match[str], **sides: dict[str, Value]) -> Call:
    return Call(
        name, "op", match["op"], "", match["direction"], int(match["number"]), sides["input"], sides["output"]
    )  # fmt: skip


def _value(row: list[Any]) -> Value | None:
    dtype, shape, figures = row[3], row[4], row[5]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape) or not isinstance(figures, list):
        return None
    three = [*figures, None, None, None][:3]
    numbers = [float(figure) if isinstance(figure, int | float) else None for figure in three]
    name = str(dtype).replace("<class '", "").removeprefix("torch.").removeprefix("numpy.").rstrip("'>")
    return Value(name, tuple(shape), maximum=numbers[0], minimum=numbers[1], mean=numbers[2])
