"""Findings from a recorded run (`npukit run --trace-ops`), which are exact where reading code only guesses."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.migrate.rule import described
from npukit.report import Finding
from npukit.report.report import counted
from npukit.source import Place

_MANY = 4  # shapes per operator and line; a last batch and an evaluation cause fewer
_MANY_UNSEEN = 16  # used if the trace does not show the number of steps


def findings_in_trace(path: Path) -> list[Finding]:
    """Return the findings in a trace: operators that fell back to the CPU, and lines whose shapes change."""
    operators = _read(path)
    return [*_fallbacks(operators), *_changing_shapes(operators)]


def _read(path: Path) -> list[dict[str, Any]]:
    try:
        operators = json.loads(path.read_text(encoding="utf-8"))["ops"]
        if all({"op", "support", "line", "inputs", "count"} <= set(record) for record in operators):
            return list(operators)
    except OSError as error:
        raise NpukitError(f"The trace {path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError):
        pass
    raise NpukitError(f"{path} is not a trace: record one with `npukit run --device sim --trace-ops {path} SCRIPT`.")


def _place(line: str) -> Place | None:
    file, _, number = line.rpartition(":")
    return Place(Path(file), int(number)) if file and number.isdigit() else None


def _fallbacks(operators: list[dict[str, Any]]) -> Iterator[Finding]:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for record in operators:
        if record["support"] == "cpu_fallback":
            counts[record["op"].removeprefix("aten::").split(".")[0], record["line"]] += record["count"]
    for (op, line), count in counts.items():
        yield described("NPK511").finding(
            _place(line) or Place(Path("unknown")),
            f"{op} ran on the CPU",
            evidence=f"{counted(count, 'call')} in the traced run",
        )


def _changing_shapes(operators: list[dict[str, Any]]) -> Iterator[Finding]:
    """Yield lines with many different shapes. A line that has the same shapes in every step serves several layers."""
    steps = max((row["count"] for row in operators if row["op"] == "aten::ones_like"), default=0)  # backward() calls
    enough = _MANY if steps >= _MANY else _MANY_UNSEEN
    shapes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for record in operators:
        copies = record["support"] != "npu" or "copy" in record["op"]
        if not copies and not record.get("backward") and record["count"] < max(steps, 2):
            shapes[record["line"]][record["op"]].add(json.dumps([given.get("shape") for given in record["inputs"]]))
    for line, by_op in shapes.items():
        op, seen = max(by_op.items(), key=lambda item: len(item[1]))
        place = _place(line)
        if len(seen) >= enough and place:
            yield described("NPK510").finding(
                place,
                "operators on this line ran with changing shapes",
                evidence=f"{op.removeprefix('aten::')}: {len(seen)} different shapes in the traced run",
            )
