"""The CSV files of msprobe's training monitor: statistics of activations, gradients, optimizer states and weights."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path

from npukit.errors import NpukitError
from npukit.precision.dump import Call, Dump, Value

# In the order of a step: the kind and phase of their rows.
_METRICS = {
    "actv": ("module", "forward"),
    "actv_grad": ("module", "backward"),
    "grad_unreduced": ("gradients", "backward"),
    "grad_reduced": ("gradients", "backward"),
    "exp_avg": ("module", "optimizer"),
    "exp_avg_sq": ("module", "optimizer"),
    "param_origin": ("module", "optimizer"),
    "param_updated": ("module", "optimizer"),
}
_FILE = re.compile(rf"({'|'.join(_METRICS)})_\d+-\d+\.csv")
_RANK = re.compile(r"rank(\d{1,9})")
_SIDE = re.compile(r"(?P<path>.+)\.(?P<side>input|output)(?P<place>\..+)?")
_FIGURES = ("min", "max", "mean", "norm")
_DIGITS = 4  # share of a figure that must survive rounding to a number of decimals


def find_monitored(path: Path) -> dict[tuple[int, int], Path]:
    """The folders of ranks below a path, by step and rank.

    >>> find_monitored(Path("monitor_output"))
    {(0, 0): PosixPath('monitor_output/Nov16_08-00-00-rank0-ab12')}
    """
    folders: dict[tuple[int, int], Path] = {}
    for folder in (path, *sorted(inner for inner in path.iterdir() if inner.is_dir())):
        if any(_FILE.fullmatch(path.name) for path in folder.iterdir()):
            rank = _RANK.search(folder.name)
            folders.update({(step, int(rank[1]) if rank else 0): folder for step in _rows(folder)})
    return folders


def read_monitored(folder: Path, step: int) -> Dump:
    """The rows of one step of one rank."""
    return Dump(folder, tuple(_rows(folder)[step].values()), step, source="monitor")


@functools.lru_cache(8)
def _rows(folder: Path) -> Mapping[int, dict[str, Call]]:
    """The rows by step, and by name in the order of a step."""
    files = [(m[1], path) for path in sorted(folder.iterdir()) if (m := _FILE.fullmatch(path.name))]
    lines = [(metric, row) for metric, file in files for row in _lines(file)]
    digits = max((_decimals(row.get(name)) for _, row in lines for name in _FIGURES), default=0)
    steps: dict[int, dict[str, Call]] = {}
    for metric, row in sorted(lines, key=lambda line: [*_METRICS].index(line[0])):
        _add(steps.setdefault(int(row["step"]), {}), metric, row, digits)
    return steps


def _lines(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            lines = list(csv.DictReader(opened))
        if all(row["name"] and int(row["step"]) >= 0 and int(row.get("micro_step") or 0) >= 0 for row in lines):
            return lines
    except (OSError, ValueError, KeyError, TypeError, csv.Error):
        pass
    raise NpukitError(f"{file} is not a file of msprobe's monitor: it is damaged, or a row has no name or step.")


def _add(calls: dict[str, Call], metric: str, row: Mapping[str, str], digits: int) -> None:
    kind, phase = _METRICS[metric]
    stage = row.get("vpp_stage") or "0"
    path, side, place = f"stage{stage}.{row['name']}" if stage != "0" else row["name"], "output", "0"
    if metric.startswith("actv") and (match := _SIDE.fullmatch(path)):
        path, side, place = match["path"], match["side"], (match["place"] or ".0")[1:]
    number = int(row.get("micro_step") or 0)
    name = f"{metric}.{path}.{number}"
    call = calls.setdefault(name, Call(name, kind, metric, path, phase, number, {}, {}))
    values = call.inputs if side == "input" else call.outputs
    assert isinstance(values, dict)
    values[place] = _value(row, digits)


def _value(row: Mapping[str, str], digits: int) -> Value:
    minimum, maximum, mean, norm = (_figure(row.get(name), digits) for name in _FIGURES)
    nans = (row.get("nans") or "").partition(".")[0]
    shape = tuple(map(int, re.findall(r"\d+", row.get("shape") or "")))
    dtype = (row.get("dtype") or "float32").removeprefix("torch.")
    return Value(dtype, shape, minimum, maximum, mean, norm, int(nans) if nans.isdecimal() else None)


def _figure(text: str | None, digits: int) -> float | None:
    """A figure, or None if rounding left too little of it to compare."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if not abs(number) < 10.0 ** (_DIGITS - digits) else None


def _decimals(text: str | None) -> int:
    try:
        exponent = Decimal(text or "0").as_tuple().exponent
    except InvalidOperation:
        return 0
    return -exponent if isinstance(exponent, int) else 0
