"""The losses in the files that a run wrote: JSON, CSV, text, TensorBoard's and wandb's."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from npukit.verify import event_files
from npukit.verify.figure import Figure
from npukit.verify.losses import is_loss, losses_in, losses_of

_MAX_BYTES = 64 << 20
State = Mapping[Path, tuple[int, int]]


def state_of(folder: Path) -> State:
    """The logs in a folder, with what changes when they are written. Clocks can step back and are not compared."""
    losses = {}
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(folder for folder in folders if not folder.startswith(".") and folder != "node_modules")
        for path in (Path(name, file) for file in sorted(files) if _reader(file)):
            if path.is_file():
                losses[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return losses


def losses_written(folder: Path, before: State) -> Iterator[Figure]:
    """The losses in the logs of a folder that have been written since.

    >>> before = state_of(folder); train(); list(losses_written(folder, before))
    """
    for path, state in state_of(folder).items():
        reader = _reader(path.name)
        if before.get(path) == state or reader is None or state[0] > _MAX_BYTES:
            continue
        where = _READ_BY_KIND.get(reader) or re.sub(r"\d+", "#", path.name)  # times and numbers differ between runs
        for loss in _read(path, reader):
            yield replace(loss, name=f"{where}: {loss.name}")


def _read(path: Path, reader: Reader) -> Iterable[Figure]:
    try:
        return list(reader(path))
    except (OSError, ValueError, csv.Error):
        return ()  # a file of another kind with such a name


def _lines(path: Path) -> Iterator[Figure]:
    return losses_in(path.read_text(errors="replace").splitlines())


def _json(path: Path) -> Iterator[Figure]:
    return losses_of(json.loads(path.read_text(errors="replace")))


def _csv(path: Path) -> Iterator[Figure]:
    with path.open(newline="", errors="replace") as file:
        for row in csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","):
            numbers = {
                name.strip(): value for name, text in row.items() if name and (value := _number(text)) is not None
            }
            yield from losses_of(numbers)


def _number(text: object) -> float | None:
    try:
        return float(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _tensorboard(path: Path) -> Iterator[Figure]:
    return _figures(event_files.tensorboard(path.read_bytes()))


def _wandb(path: Path) -> Iterator[Figure]:
    return _figures(event_files.wandb(path.read_bytes()))


def _figures(scalars: Iterable[event_files.Scalar]) -> Iterator[Figure]:
    for name, step, value in scalars:
        if is_loss(name):
            yield Figure(name.lower(), value, step, f"step {step}: {name} {value:g}")


Reader = Callable[[Path], Iterator[Figure]]
_READERS: Mapping[str, Reader] = {
    ".jsonl": _lines, ".json": _json, ".csv": _csv, ".tsv": _csv, ".log": _lines, ".txt": _lines, ".wandb": _wandb,
}  # fmt: skip
_READ_BY_KIND: Mapping[Reader, str] = {
    _tensorboard: "TensorBoard",
    _wandb: "wandb",
}  # their names contain times, hosts and random words


def _reader(name: str) -> Reader | None:
    return _tensorboard if ".tfevents." in name else _READERS.get(Path(name).suffix)
