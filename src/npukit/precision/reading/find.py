"""Find the dumps below a path, whichever tool wrote them."""

from __future__ import annotations

import re
from pathlib import Path

from npukit.errors import NpukitError
from npukit.precision.dump import Call, Dump
from npukit.precision.reading.monitor import find_monitored, read_monitored
from npukit.precision.reading.msprobe import read_msprobe
from npukit.precision.result import Row

_STEP = re.compile(r"step(\d{1,9})")
_PROCESS = re.compile(r"(?:rank|proc)(\d{1,9})")


def find_dumps(path: Path) -> dict[tuple[int, int], Path]:
    """The dump files below a path, by step and rank. Processes without a rank are numbered in order. For dumps of
    msprobe's monitor, the value is the folder of a rank.

    >>> find_dumps(Path("dump"))
    {(0, 0): PosixPath('dump/step0/rank0/dump.json')}
    """
    if path.is_file():
        return {(0, 0): path}
    if not path.is_dir():
        raise NpukitError(f"There is no dump {path}: name the folder that `capture --output` or msprobe wrote.")
    for steps in (_numbered(path, _STEP), [(0, path)]):
        dumps = {
            (step, place if folder.name.startswith("proc") else rank): file
            for step, below in steps
            for place, (rank, folder) in enumerate(_numbered(below, _PROCESS) or [(0, below)])
            if (file := _dump_in(folder))
        }
        if dumps:
            return dumps
    if monitored := find_monitored(path):
        return monitored
    raise NpukitError(
        f"There is neither a dump.json nor a CSV file of msprobe's monitor below {path}: name the folder that "
        "`capture --output` or msprobe wrote."
    )


def read(file: Path, step: int = 0) -> Dump:
    """The rows of one dump file, or of one step of a folder that msprobe's monitor wrote."""
    if file.is_dir():
        return read_monitored(file, step)
    if file.suffix == ".pkl":
        from npukit.precision.reading.ptdbg import read_ptdbg

        return read_ptdbg(file)
    return read_msprobe(file)


def find_call(path: Path, row: Row) -> Call:
    """The call that a comparison's row refers to, in the dump that was on the left."""
    calls = read(find_dumps(path)[row.step, row.rank], row.step).calls
    return next(call for call in calls if call.name == row.left)


def _numbered(folder: Path, pattern: re.Pattern[str]) -> list[tuple[int, Path]]:
    matched = ((pattern.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matched if match)


def _dump_in(folder: Path) -> Path | None:
    file = folder / "dump.json"
    return file if file.is_file() else next(iter(sorted(folder.glob("*.pkl"))), None)
