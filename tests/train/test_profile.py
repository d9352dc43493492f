"""A profiler trace holds the steps that were asked for, and no others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.train.options import TrainOptions
from npukit.train.profile import StepProfiler


def recorded(folder: Path, profile: Any, start: int = 0, last: int = 6) -> set[str]:
    options = TrainOptions(output=folder, profile=profile)
    with StepProfiler(options, torch.device("cpu"), rank=3, start_step=start) as profiler:
        for step in range(start + 1, last + 1):
            with torch.profiler.record_function(f"step {step}"):
                torch.ones(4).sum()
            profiler.step()
    if profiler.trace is None:
        return set()
    assert profiler.trace.parent == folder / "profile" and "rank3" in profiler.trace.name
    events = json.loads(profiler.trace.read_text())["traceEvents"]
    return {event["name"] for event in events if event.get("name", "").startswith("step ")}


@pytest.mark.parametrize(
    ("steps", "start", "last", "expected"),
    [
        ((2, 3), 0, 6, {"step 2", "step 3"}),
        ((1, 1), 0, 3, {"step 1"}),
        ((5, 9), 0, 6, {"step 5", "step 6"}),  # the run ends before
        ((2, 5), 3, 6, {"step 4", "step 5"}),  # resumed in between
        ((1, 2), 4, 6, set()),
    ],
)
def test_steps(tmp_path: Path, steps: tuple[int, int], start: int, last: int, expected: set[str]) -> None:
    assert recorded(tmp_path, {"steps": steps}, start, last) == expected


def test_nothing_is_recorded_unless_asked(tmp_path: Path) -> None:
    assert recorded(tmp_path, None) == set() and not list(tmp_path.iterdir())
