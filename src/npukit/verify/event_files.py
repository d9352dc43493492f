"""Reads the scalars in TensorBoard's event files and wandb's offline files, without either package.

Both contain protocol buffers: TensorBoard in TFRecords, wandb in the format of LevelDB's log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import NamedTuple

_BLOCK = 32768
_HEADER = 7  # of a wandb file, and of each record in it
_COMPLETE, _LAST = 1, 4  # kinds of a record's part


class Scalar(NamedTuple):
    name: str
    step: int | None
    value: float


def tensorboard(data: bytes) -> Iterator[Scalar]:
    """The scalars of an events.out.tfevents file.

    >>> list(tensorboard(Path("runs/events.out.tfevents.1").read_bytes()))
    [Scalar(name='train/loss', step=0, value=2.5)]
    """
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = dict(_fields(data[at + 12 : at + 12 + length]))
        at += 16 + length
        for number, value in _fields(event.get(5, b"")):
            summary = dict(_fields(value)) if number == 1 else {}
            if 1 in summary and (scalar := _scalar(summary)) is not None:
                yield Scalar(summary[1].decode(errors="replace"), _integer(event.get(2, b"")) or 0, scalar)


def _scalar(summary: dict[int, bytes]) -> float | None:
    """The value of a summary: a plain number, or a tensor of one float."""
    tensor = dict(_fields(summary.get(8, b"")))
    data = summary.get(2) or tensor.get(5) or tensor.get(4) or b""
    return float(struct.unpack("<f", data)[0]) if len(data) == 4 else None


def wandb(data: bytes) -> Iterator[Scalar]:
    """The scalars of a run-*.wandb file."""
    for record in _wandb_records(data):
        for number, history in _fields(record):
            if number != 2:
                continue
            items = [item for kind, value in _fields(history) if kind == 1 and (item := _item(value))]
            step = next((int(value) for name, value in items if name == "_step"), None)
            yield from (Scalar(name, step, value) for name, value in items)


def _item(data: bytes) -> tuple[str, float] | None:
    fields = list(_fields(data))
    name = "/".join(value.decode(errors="replace") for number, value in fields if number in (1, 2) and value)
    for number, value in fields:
        if number == 16:
            record = json.loads(value)
            return (name, float(record)) if isinstance(record, int | float) else None
        if number == 6 and len(value) == 8:
            return name, float(struct.unpack("<d", value)[0])
    return None


def _wandb_records(data: bytes) -> Iterator[bytes]:
    at, parts = _HEADER, b""
    while at + _HEADER <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_COMPLETE, _LAST):
            yield parts
            parts = b""


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protocol buffer by number, up to where it was cut off."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == 0:
            start = at
            _, at = _varint(data, at)
            yield key >> 3, data[start:at]
            continue
        if wire == 2:
            length, at = _varint(data, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            return
        yield key >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            break
    return value, at


def _integer(data: bytes) -> int:
    return _varint(data, 0)[0]
