"""Turn what profilers write into numbers, shapes and types. What cannot be read becomes empty, never an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import Any

from npukit.performance.read.model import Shape

_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bf16": "bfloat16", "bool": "bool", "long": "int64",
    "int": "int32", "char": "int8", "byte": "uint8", "short": "int16", "dt_bf16": "bfloat16", "dt_float": "float32",
    "fp32": "float32", "fp16": "float16", "fp64": "float64", "long int": "int64", "unsigned char": "uint8",
    "signed char": "int8", "short int": "int16", "c10::bfloat16": "bfloat16", "c10::half": "float16",
    "bfp16": "bfloat16",
}  # fmt: skip
SIZES = {"float64": 8, "int64": 8, "uint64": 8, "float32": 4, "int32": 4, "uint32": 4, "int16": 2, "uint16": 2}
SIZES |= {"float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1, "bool": 1}
_USERS = re.compile(
    r"^(?!.*(?:site-packages|dist-packages|/lib/python\d|^torch/|^<|^npukit/|^threading\.py))(.+\.py)\((\d+)\)"
)


def microseconds(value: Any) -> int | None:
    """Convert microseconds, as a number or as text of any length, to nanoseconds. Text loses no digits.

    >>> microseconds("1736408883704643.212	")
    1736408883704643212
    """
    if isinstance(value, str):
        whole, _, part = value.strip().partition(".")
        try:
            return int(whole) * 1000 + int(part[:3].ljust(3, "0") or 0) * (-1 if whole.startswith("-") else 1)
        except ValueError:
            number_ = number(value)
            return None if number_ is None else round(number_ * 1000)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18:
        return round(value * 1000)
    return None


def number(value: Any) -> float | None:
    """A finite number, or None for N/A, empty cells and anything else.

    >>> number("12.5"), number("N/A")
    (12.5, None)
    """
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if abs(result) < 1e300 else None


def whole(value: Any) -> int | None:
    """An integer, or None."""
    finite = number(value)
    return None if finite is None else int(finite)


@functools.lru_cache(maxsize=65536)
def shapes_of(text: str) -> tuple[Shape, ...]:
    """The shapes in a cell of torch_npu's files.

    >>> shapes_of('"32,3,224,224;64"')
    ((32, 3, 224, 224), (64,))
    """
    cells = text.strip().strip('"').replace("\r\n", "").split(";")
    return tuple(_shape(cell) for cell in cells) if text and text != "N/A" else ()


def _shape(cell: str) -> Shape:
    parts = [word.strip() for word in cell.strip().strip('"[]()').split(",")]
    return tuple(int(part) for part in parts if part.isdigit())


@functools.lru_cache(maxsize=4096)
def dtypes_of(text: str) -> tuple[str, ...]:
    """The dtypes in a cell, by torch's names.

    >>> dtypes_of("DT_BF16;FLOAT")
    ('bfloat16', 'float32')
    """
    return tuple(dtype_of(word) for word in text.replace("\r\n", "").split(";")) if text and text != "N/A" else ()


@functools.lru_cache(maxsize=4096)
def dtype_of(text: str) -> str:
    """A dtype by torch's name, whatever tool wrote it."""
    lower = text.strip().lower()
    return _DTYPES.get(lower) or _DTYPES.get(lower.removeprefix("dt_")) or lower.removeprefix("dt_")


def lists_to_shapes(dims: Any) -> tuple[Shape, ...]:
    """The shapes of Kineto's `Input Dims`, which may contain nested lists of tensors.

    >>> lists_to_shapes([[2, 3], [], [[4], [5]]])
    ((2, 3), (), (4,), (5,))
    """
    if not isinstance(dims, list):
        return ()
    shapes: list[Shape] = []
    for dim in dims:
        if isinstance(dim, list) and dim and isinstance(dim[0], list):
            shapes += [tuple(inner) for inner in dim if all(isinstance(size, int) for size in inner)]
        elif isinstance(dim, list) and all(isinstance(size, int) for size in dim):
            shapes.append(tuple(dim))
    return tuple(shapes)


def users_line(frames: Iterable[str]) -> str:
    """The first stack frame in the user's own code, as file:line.

    >>> users_line(["torch/nn/modules/linear.py(134): forward", "train.py(12): main"])
    'train.py:12'
    """
    return next((line for frame in frames if (line := _users_line(frame))), "")


@functools.lru_cache(maxsize=65536)
def _users_line(frame: str) -> str:
    match = _USERS.match(frame.strip())
    return f"{match[1]}:{match[2]}" if match else ""
