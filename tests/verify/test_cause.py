"""The operator at which two records part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npukit.verify.cause import first_cause
from npukit.verify.result import OpDifference

BEFORE = "import torch\nx = torch.ones(3).cuda()\ny = x.relu()\nz = y @ w\n"
AFTER = "import torch\nimport torch_npu\nx = torch.ones(3).npu()\ny = x.relu()\nz = y @ w\n"
SAME: list[list[Any]] = [["ones", 2, False, [1.7, 0.5]], ["relu", 3, False, [1.7, 0.5]], ["mm", 4, False, [3.0, 1.0]]]


@pytest.fixture
def find(tmp_path: Path) -> Any:
    for name, text in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)

    def run(before: list[list[Any]], after: list[list[Any]], moved: int = 1) -> OpDifference | None:
        for name, records, shift in (("a", before, 0), ("b", after, moved)):
            lines = [[op, f"train.py:{line + shift}", back, figures] for op, line, back, figures in records]
            (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return first_cause(tmp_path / "before", tmp_path / "after", (tmp_path / "a", tmp_path / "b"), 1e-4)

    return run


def test_the_same_on_lines_that_moved(find: Any) -> None:
    assert find(SAME, SAME) is None


def test_an_operator_that_computes_something_else(find: Any) -> None:
    other = [SAME[0], ["relu", 3, False, [1.7, -0.5]], ["mm", 4, False, [9.0, 1.0]]]
    found = find(SAME, other)
    assert (found.op, found.before_line, found.after_line) == ("relu", "train.py:3", "train.py:4")
    assert (found.kind, found.before_norm, found.after_norm) == ("result", 1.7, 1.7)


def test_an_operator_that_one_run_alone_calls_and_what_follows(find: Any) -> None:
    other = [SAME[0], ["gelu", 3, False, [1.5, 0.4]], ["mm", 4, False, [2.0, 1.0]]]
    found = find(SAME, other)
    assert (found.op, found.after_line) == ("relu", "train.py:4")
    assert found.kind == "only before"
    assert (found.then.kind, found.then.op, found.then.after_line) == ("result", "mm", "train.py:5")


def test_what_a_device_takes_apart_is_no_difference(find: Any) -> None:
    parts = [SAME[0], SAME[1], ["transpose", 4, False, [1.0, 1.0]], SAME[2]]
    assert find(SAME, parts) is None


def test_rounding_is_no_difference(find: Any) -> None:
    rounded = [[op, line, back, [value * (1 + 1e-6) for value in figures]] for op, line, back, figures in SAME]
    assert find(SAME, rounded) is None
