"""What a run tells: its log, its files, its summary."""

from __future__ import annotations

import builtins
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.errors import NpukitError
from npukit.facts.peak_flops import peak_flops
from npukit.train.options import TrainOptions
from npukit.train.watch import Summary, Watch


class Unread:
    """A loss that says when it is read."""

    def __init__(self, value: float, reads: list[float]) -> None:
        self.value, self.reads = value, reads
        self.device = torch.device("cpu")

    def detach(self) -> Unread:
        return self

    def float(self) -> Unread:
        return self

    def __radd__(self, other: Any) -> Unread:
        return Unread(self.value + other, self.reads)

    def __add__(self, other: Unread) -> Unread:
        return Unread(self.value + other.value, self.reads)

    def __float__(self) -> builtins.float:
        self.reads.append(self.value)
        return self.value


def options(folder: Path, **more: Any) -> TrainOptions:
    return TrainOptions(output=folder, log_every=5, **more)


def steps(watch: Watch, first: int, last: int) -> None:
    for step in range(first, last + 1):
        watch.step(step, step / 10, torch.tensor(float(step)), torch.tensor(2.0), 1e-3, 32, 0.0)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_tensors_are_read_on_logging_steps_only(tmp_path: Path) -> None:
    reads: list[float] = []
    watch = Watch(options(tmp_path, plot=False), True, 1, 12)
    watch.began(0)
    records = [watch.step(n, 0.1, Unread(float(n), reads), 1.0, 1e-3, 8, 0.0) for n in range(1, 13)]
    assert [record["step"] for record in records if record] == [1, 2, 5, 10, 12]  # the first two always
    assert [record["loss"] for record in records if record] == [1.0, 2.0, 4.0, 8.0, 11.5]  # means since the line before
    assert reads == [1.0, 2.0, 12.0, 40.0, 23.0]


def test_the_files_of_a_run(tmp_path: Path) -> None:
    watch = Watch(options(tmp_path, loggers=["tensorboard"]), True, 2, 10, item="rows")
    watch.began(0)
    steps(watch, 1, 10)
    watch.evaluated(10, {"eval_loss": 1.25})
    watch.saved(10, tmp_path / "checkpoint-10")
    watch.note(10, "something odd")
    summary = watch.finish("all steps done")
    assert isinstance(summary, Summary)
    assert (summary.steps, summary.items, summary.first_loss, summary.last_loss) == (10, 320, 1.0, 8.0)
    assert summary.evaluation == {"eval_loss": 1.25} and summary.checkpoint == str(tmp_path / "checkpoint-10")
    assert json.loads((tmp_path / "summary.json").read_text())["items"] == 320
    markdown = (tmp_path / "summary.md").read_text()
    assert "| loss | 1.0000 → 8.0000 |" in markdown and "something odd" in markdown
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "tensorboard").glob("events*"))
    kinds = [next(iter(set(row) & {"loss", "eval_loss", "checkpoint", "note"})) for row in log_of(tmp_path)]
    assert kinds == [*["loss"] * 4, "eval_loss", "checkpoint", "note"]


def test_a_resumed_run_has_every_step_once(tmp_path: Path) -> None:
    """Killed at step 12 with its last checkpoint after step 7, in the middle between two lines of the log."""
    first = Watch(options(tmp_path), True, 1, 20)
    first.began(0)
    steps(first, 1, 7)
    state = json.loads(json.dumps(first.state_dict()))
    steps(first, 8, 12)
    second = Watch(options(tmp_path), True, 1, 20)
    second.load_state_dict(state)
    second.began(7)
    steps(second, 8, 20)
    summary = second.finish("all steps done")
    whole = Watch(options(tmp_path / "whole"), True, 1, 20)
    whole.began(0)
    steps(whole, 1, 20)
    whole.finish("all steps done")
    resumed, undisturbed = ([(row["step"], row["loss"]) for row in log_of(at)] for at in (tmp_path, tmp_path / "whole"))
    assert resumed == undisturbed
    assert summary.items == 20 * 32


def test_a_run_begun_anew_keeps_the_log_before(tmp_path: Path) -> None:
    for _ in range(2):
        watch = Watch(options(tmp_path, plot=False), True, 1, 5)
        watch.began(0)
        steps(watch, 1, 5)
        watch.finish("all steps done")
    assert [row["step"] for row in log_of(tmp_path)] == [1, 2, 5]
    assert (tmp_path / "log.before.jsonl").exists()


def test_speed_leaves_evaluations_out_and_knows_the_wait_for_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    watch = Watch(options(tmp_path, plot=False), True, 1, 10)
    watch.began(0)
    for step in range(1, 11):
        now += 0.01
        record = watch.step(step, 0.1, torch.tensor(1.0), 1.0, 1e-3, 100, 0.005)
        if step == 5:
            now += 0.5
            watch.evaluated(5, {"eval_loss": 1.0})
    assert record and record["items_per_second"] == pytest.approx(10_000)
    assert record["data_wait"] == pytest.approx(0.5)
    summary = watch.finish("all steps done")
    assert summary.items_per_second == pytest.approx(10_000) and summary.pauses == pytest.approx(0.5)


def test_only_the_main_rank_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = Watch(options(tmp_path), False, 2, 5)
    watch.began(0)
    steps(watch, 1, 5)
    watch.finish("all steps done")
    assert capsys.readouterr().out == "" and not list(tmp_path.iterdir())


def test_nonfinite_values_stay_json(tmp_path: Path) -> None:
    watch = Watch(options(tmp_path, plot=False), True, 1, 5)
    watch.began(0)
    for step in range(1, 6):
        watch.step(step, 0.1, torch.tensor(float("nan")), torch.tensor(float("inf")), 1e-3, 1, 0.0)
    line = (tmp_path / "log.jsonl").read_text().splitlines()[-1]
    record = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (record["loss"], record["grad_norm"]) == ("nan", "inf")


def test_utilisation_of_a_known_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npukit.train.watch.watch.known_peak", lambda device: 1e6)
    watch = Watch(options(tmp_path, plot=False), True, 2, 5, flops_per_item=1e3)
    watch.began(0)
    for step in range(1, 6):
        record = watch.step(step, 0.1, torch.tensor(1.0), 1.0, 1e-3, 10, 0.0)
    assert record and record["utilisation"] == pytest.approx(record["items_per_second"] * 1e3 / 2e6)


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("Ascend910B2", 353.9),
        ("Ascend X", None),
    ],
)
def test_peaks(name: str, tflops: float | None) -> None:
    assert peak_flops(name) == (tflops * 1e12 if tflops else None)


def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(NpukitError, match="pip install wandb"):
        Watch(options(tmp_path, loggers=["wandb"]), True, 1, 5).began(0)


def test_mlflow_gets_the_figures_and_its_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, Any]] = []
    service = types.ModuleType("mlflow")
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="run7"))
    service.set_experiment = lambda name: calls.append(("experiment", name))  # type: ignore
    service.start_run = lambda run_id: calls.append(("start", run_id)) or run  # type: ignore
    service.log_metrics = lambda figures, step: calls.append(("log", (step, figures["loss"])))  # type: ignore
    service.end_run = lambda: calls.append(("end", None))  # type: ignore
    monkeypatch.setitem(sys.modules, "mlflow", service)
    watch = Watch(options(tmp_path / "mine", plot=False, loggers=["mlflow"]), True, 1, 10)
    watch.began(0)
    steps(watch, 1, 10)
    watch.finish("all steps done")
    assert calls[:2] == [("experiment", "mine"), ("start", None)] and calls[-1][0] == "end"
    assert [what for what, _ in calls].count("log") == 4
    again = Watch(options(tmp_path / "mine", loggers=["mlflow"]), True, 1, 20)
    again.load_state_dict(watch.state_dict())
    again.began(10)
    assert calls[-1] == ("start", "run7")


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_services_get_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    calls: list[tuple[str, Any]] = []
    service = types.ModuleType(name)
    service.init = lambda **given: calls.append(("init", given)) or types.SimpleNamespace(id="run7")  # type: ignore
    service.log = lambda figures, step: calls.append(("log", (step, figures["loss"])))  # type: ignore
    service.finish = lambda: calls.append(("finish", None))  # type: ignore
    monkeypatch.setitem(sys.modules, name, service)
    watch = Watch(options(tmp_path / "mine", plot=False, loggers=[name]), True, 1, 10)
    watch.began(0)
    steps(watch, 1, 10)
    watch.finish("all steps done")
    assert [what for what, _ in calls] == ["init", *["log"] * 4, "finish"]
    assert calls[0][1]["project"] == "mine" and calls[3][1] == (5, 4.0)
    again = Watch(options(tmp_path / "mine", loggers=[name]), True, 1, 20)
    again.load_state_dict(watch.state_dict())
    again.began(10)
    assert calls[-1][1]["id"] == "run7"  # the same run goes on


def test_a_terminal_gets_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    watch = Watch(options(tmp_path, plot=False), True, 1, 10)
    watch.began(0)
    steps(watch, 1, 10)
    watch.evaluated(10, {"eval_loss": 1.25})
    watch.finish("all steps done")
    output = capsys.readouterr().out
    assert "step 10/10" in output and "━" in output and "loss 8.0000" in output and "eval_loss 1.2500" in output
    assert "all steps done" in output
