"""Tokenise a table in parts: an interrupted run leaves complete parts, and the next run continues after them."""

from __future__ import annotations

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np

from npukit.llm.data.encode import Encoder
from npukit.llm.data.encoded import Counter, encoded_rows
from npukit.llm.data.files import RawRow
from npukit.llm.data.problems import Problems
from npukit.llm.data.sources import Table
from npukit.llm.images.table import CONTENT, as_bytes, save
from npukit.report.writing import whole_folder

RECORDS = 65_536  # rows per part
IMAGES = "image_lengths.npy"  # bytes of each row's images


@dataclass(frozen=True)
class Parts:
    """The parts of a table that are on disk, in order, and the problems of all their rows."""

    folders: list[Path]
    problems: Problems

    def join(self, folder: Path) -> None:
        """Write the tokens, offsets and problems of all parts as one."""
        lengths = [np.load(part / "lengths.npy") for part in self.folders]
        with (folder / "tokens.bin").open("wb") as whole:
            for part in self.folders:
                with (part / "tokens.bin").open("rb") as tokens:
                    shutil.copyfileobj(tokens, whole, 1 << 22)
        save(folder, [part / CONTENT for part in self.folders], [np.load(part / IMAGES) for part in self.folders])
        np.save(folder / "offsets.npy", np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64))
        (folder / "problems.json").write_text(json.dumps(asdict(self.problems)))


def make_parts(place: Path, table: Table, encoder: Encoder, log: Callable[[str], None]) -> Parts:
    """Tokenise the parts that earlier runs have not. No other process works in `place`."""
    place.mkdir(exist_ok=True)
    parts, counter, records = Parts([], Problems()), Counter(table, log), table.records()
    size = RECORDS if table.limit is None else None  # a limit counts usable rows from the beginning
    while (first := next(records, None)) is not None:
        some = chain([first], islice(records, size and size - 1))
        part = place / f"{len(parts.folders):06}"
        if part.exists():
            deque(some, maxlen=0)
            counter.skip(len(np.load(part / "lengths.npy")))
        else:
            with whole_folder(part) as beside:
                _make(beside, table, encoder, some, counter)
        parts.folders.append(part)
        parts.problems.add(Problems(**json.loads((part / "problems.json").read_text())))
        if size is None:
            break
    return parts


def _make(folder: Path, table: Table, encoder: Encoder, records: Iterator[RawRow], counter: Counter) -> None:
    problems, lengths, image_lengths = Problems(), [], []
    with (folder / "tokens.bin").open("wb") as file, (folder / CONTENT).open("wb") as images:
        for encoded in counter.count(encoded_rows(table, encoder, problems, records)):
            file.write(encoded.tokens.tobytes())
            lengths.append(len(encoded.tokens))
            image_lengths.append(images.write(as_bytes(encoded.images)))
    np.save(folder / "lengths.npy", np.array(lengths, dtype=np.int64))
    np.save(folder / IMAGES, np.array(image_lengths, dtype=np.int64))
    (folder / "problems.json").write_text(json.dumps(asdict(problems)))
