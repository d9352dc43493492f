"""Closer looks: bisecting two runs, single kernels, where NaN begins, and msprobe's own configuration."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.errors import NpukitError
from npukit.precision import bisect, capture
from npukit.precision.kernels import check_here
from npukit.precision.nonfinite import first_nonfinite, origin_sentence
from npukit.precision.recording.config import read_config
from npukit.precision.recording.options import RecordOptions

Run = Callable[..., Path]


def test_bisecting_ends_with_the_tensors_of_one_module(
    record: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RecordOptions] = []

    def run(command: Any, environment: Mapping[str, str], options: RecordOptions, auto: bool) -> None:
        asked.append(options)
        record(
            Path(options.output).relative_to(tmp_path),
            (lambda x: x.mul(1.01)) if environment else None,
            level=options.level, steps=options.steps, tensors=options.tensors, only=options.only,
        )  # fmt: skip

    monkeypatch.setattr(bisect, "record", run)
    bisection = bisect.bisect(["train.py"], ({}, {"FAULT": "1"}), tmp_path / "hunt", (0,))
    assert [(options.level, options.only, options.tensors) for options in asked[::2]] == [
        ("modules", "", False),
        ("ops", "2", False),
        ("ops", "2", True),
    ]
    first = bisection.comparison.first
    assert bisection.exit_code == 1 and first is not None and first.row.path == "2.down"
    assert first.kind == "missing" and "mul in 2," in first.what


def test_bisecting_keeps_what_it_found_when_the_closest_look_shows_something_else(
    record: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = iter([None, lambda x: x * 1.01, None, lambda x: x * 1.01, None, None])  # the last run is right by chance

    def run(command: Any, environment: Mapping[str, str], options: RecordOptions, auto: bool) -> None:
        record(Path(options.output).relative_to(tmp_path), next(faults), level=options.level, steps=options.steps)

    monkeypatch.setattr(bisect, "record", run)
    bisection = bisect.bisect(["train.py"], ({}, {}), tmp_path / "hunt", (0,)).comparison
    assert bisection.first is not None and "mul in 2," in bisection.first.what


def test_a_kernel_that_is_out_of_line_is_named(record: Run) -> None:
    dump = record("dump", steps=[0])
    kernels = list(check_here(dump, "cpu"))
    assert not [kernel for kernel in kernels if kernel.outcome == "out of line"]
    assert {"addmm", "native_layer_norm", "relu"} <= {kernel.op for kernel in kernels if kernel.outcome == "in line"}

    class Wrong(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.relu.default and result.dtype is torch.float32:
                self.calls += 1
                return result if self.calls % 2 else result * 1.01  # the second is the device's
            return result

    with Wrong():
        wrong = [kernel for kernel in check_here(dump, "cpu") if kernel.outcome == "out of line"]
    assert {kernel.op for kernel in wrong} == {"relu"} and wrong[0].error == pytest.approx(0.01, rel=0.1)


def test_the_operator_in_which_nan_begins(tmp_path: Path) -> None:
    with capture(tmp_path / "dump", level="ops"):
        mask = torch.zeros(3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).triu(1), float("-inf"))
        y = (torch.tensor([-1.0, 1.0, 2.0]) + mask.softmax(-1)).log()
        y.sum() * 2
    call = first_nonfinite(tmp_path / "dump")
    assert call is not None and call.op == "log"
    assert f"{Path(__file__).name}:" in origin_sentence(tmp_path / "dump")


def test_the_configuration_of_msprobe_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": "d", "rank": [0, "2-3"], "step": []}))
    assert read_config(file) == RecordOptions("d", "ops", None, (0, 2, 3), tensors=True)
    assert read_config(file, "mine").output == "mine"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"level": "L2", "dump_path": "d"}',
        '{"task": "free_benchmark"}',
        "{}",
        '{"dump_path": "d", "step": [{}]}',
    ],
)
def test_a_configuration_that_cannot_be_met_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(NpukitError):
        read_config(tmp_path / "config.json")
