"""log.jsonl of `npukit train`: no operators, but the step time, the loader's share and the memory of a whole run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from npukit.performance.read.model import StepBreakdown, Trace
from npukit.performance.read.stream import UnreadableProfile, open_bytes, sentences


def read_log(path: Path) -> Trace:
    """The figures of a run. An incomplete last line of a killed run is ignored.

    >>> read_log(Path("output/log.jsonl")).given[0].step
    """
    trace = Trace(path, "log")
    with sentences(path), open_bytes(path) as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                numbers = {name: float(value) for name, value in record.items() if isinstance(value, int | float)}
                trace.step_log.append(numbers)
    if not trace.step_log:
        raise UnreadableProfile(f"{path} contains no steps: name the log.jsonl that `npukit train` wrote.")
    trace.has.add("log")
    trace.given = _steps(trace.step_log)
    return trace


def _steps(records: list[Mapping[str, float]]) -> list[StepBreakdown]:
    """Each interval between two lines: the time of a step, and the share spent waiting for data."""
    timed = [record for record in records if "seconds" in record]
    breakdowns = []
    for before, after in pairwise(timed):
        steps, seconds = after["step"] - before["step"], after["seconds"] - before["seconds"]
        if steps > 0 and seconds > 0:
            step, wait = 1e3 * seconds / steps, min(1.0, max(0.0, after.get("data_wait", 0.0)))
            breakdowns.append(StepBreakdown(step * (1 - wait), 0.0, 0.0, step * wait, None))
    return breakdowns
