"""The images of a table's rows, on disk next to their tokens: names and sizes, never pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.images.images import RowImage

CONTENT, ENDS = "images.json", "image_ends.npy"


def as_bytes(images: Sequence[RowImage]) -> bytes:
    """The images of a row; b"" if it has none."""
    return json.dumps([image.stored() for image in images], ensure_ascii=False).encode() if images else b""


class ImageTable:
    """The images of rows, concatenated; `ends` says where those of each row end."""

    def __init__(self, content: Any, ends: NDArray[np.int64]) -> None:
        self._content, self._ends = content, ends

    @classmethod
    def of(cls, rows: Sequence[Sequence[RowImage]]) -> ImageTable | None:
        """A table in memory; None if no row has an image."""
        parts = [as_bytes(row) for row in rows]
        content = b"".join(parts)
        return cls(content, np.cumsum([0, *map(len, parts)])) if content else None

    @classmethod
    def open(cls, folder: Path) -> ImageTable | None:
        """Memory-map the output of `save`; None if it wrote nothing."""
        file = folder / CONTENT
        return cls(np.memmap(file, np.uint8, "r"), np.load(folder / ENDS)) if file.exists() else None

    def __getitem__(self, number: int) -> list[RowImage]:
        text = bytes(self._content[self._ends[number] : self._ends[number + 1]])
        return [RowImage.restored(*each) for each in json.loads(text)] if text else []


def save(folder: Path, parts: Sequence[Path], lengths: Sequence[NDArray[np.int64]]) -> None:
    """Concatenate the content of some files into a table; `lengths` are those of their rows."""
    if not sum(int(each.sum()) for each in lengths):
        return
    with (folder / CONTENT).open("wb") as whole:
        for part in parts:
            whole.write(part.read_bytes())
    np.save(folder / ENDS, np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64))
