"""npukit tune: what is tried, what is kept, and that a stopped tuning goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from npukit.errors import NpukitError
from npukit.launch.devices import Devices
from npukit.llm.config.options import Config
from npukit.performance.plan.fit import Changes
from npukit.performance.tune import tune as tuning
from npukit.performance.tune.tune import Trial, tune

CPU = Devices("cpu")


def config(path: str = "model", data: str = "rows.jsonl", **training: Any) -> Config:
    training = {"batch_size": 1, "accumulation": 8, **training}
    return Config(model={"path": path}, data={"train": data, "packing": False}, training=training)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Changes]:
    """Runs that take no time: a batch of four is fastest, and one of eight takes too much memory."""
    made: list[Changes] = []

    def measure(self: Any, changes: Changes) -> Trial:
        made.append(changes)
        size = changes.get("training.batch_size", 1)
        speed = {1: 100.0, 2: 180.0, 4: 300.0, 8: 500.0}[size]
        speed *= 0.7 if changes.get("training.activation_checkpointing") else 1
        speed *= 1.3 if changes.get("training.workers") == 2 else 1
        return Trial(changes, speed, 2.0 * size, self._memory_gib is None or 2.0 * size <= self._memory_gib)

    monkeypatch.setattr(tuning._Bench, "_measure", measure)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    return made


def test_the_fastest_settings_within_the_memory_win(runs: list[Changes], tmp_path: Path) -> None:
    tuned = tune(config(), CPU, tmp_path, memory_gib=10)
    chosen = tuned.config.training
    assert (chosen.batch_size, chosen.accumulation, chosen.workers) == (4, 2, None)
    assert tuned.gain == pytest.approx(3.0) and not tuned.config.training.activation_checkpointing
    assert tune(config(), CPU, tmp_path / "other").config.training.batch_size == 8, "without a limit"


def test_settings_are_tried_once_however_they_are_told(runs: list[Changes], tmp_path: Path) -> None:
    tune(config(), CPU, tmp_path, memory_gib=5)  # from a batch of two, a smaller one is what was configured
    sizes = [run.get("training.batch_size", 1) for run in runs if "training.workers" not in run]
    assert sizes.count(1) == 1


def test_ranks_share_the_work_in_the_fastest_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    speeds = {"ddp": 100.0, "fsdp2": 90.0, "zero2": 130.0}

    def measure(self: Any, changes: Changes) -> Trial:
        return Trial(changes, speeds[changes.get("training.parallel", "ddp")], 1.0, True)

    monkeypatch.setattr(tuning._Bench, "_measure", measure)
    assert tune(config(), Devices("cpu", count=2), tmp_path).config.training.parallel == "zero2"
    assert tune(config(), CPU, tmp_path / "one").config.training.parallel == "ddp"


def test_what_was_tried_is_not_tried_again(runs: list[Changes], tmp_path: Path) -> None:
    first = tune(config(), CPU, tmp_path)
    count = len(runs)
    assert tune(config(), CPU, tmp_path) == first and len(runs) == count
    file = tmp_path / tuning.TRIALS
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    assert tune(config(), CPU, tmp_path) == first and len(runs) == count + len(first.trials) - 2
    tune(config(learning_rate=1.0), CPU, tmp_path)
    assert len(runs) > count + len(first.trials), "another configuration is another tuning"


def test_a_tuning_that_is_stopped_keeps_what_it_knows(
    runs: list[Changes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = tuning._Bench._measure

    def stopped(self: Any, changes: Changes) -> Trial:
        if len(runs) == 2:
            raise KeyboardInterrupt
        return measure(self, changes)

    monkeypatch.setattr(tuning._Bench, "_measure", stopped)
    fastest: list[Config] = []
    with pytest.raises(KeyboardInterrupt):
        tune(config(), CPU, tmp_path, keep=fastest.append)
    assert [config.training.batch_size for config in fastest] == [2]
    kept = [json.loads(line) for line in (tmp_path / tuning.TRIALS).read_text().splitlines()][1:]
    assert [run["changes"] for run in kept] == runs


@pytest.mark.usefixtures("copies")
def test_a_real_run_is_measured_and_leaves_no_model(
    tiny_qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text(json.dumps({"instruction": "One plus one?", "output": "Two."}) + "\n")
    bench = tuning._Bench(config(str(tiny_qwen2), accumulation=1), CPU, tmp_path, 3, 0.001, lambda _: None)
    trial = bench.run({"training.batch_size": 2})
    assert not trial.error and trial.tokens_per_second > 0 and trial.memory_gib > 0.001 and not trial.within_memory
    assert not list(tmp_path.rglob("*.safetensors")) and not list(tmp_path.rglob("checkpoint-*"))


def test_a_configuration_that_does_not_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning._Bench, "_measure", lambda self, changes: Trial(changes, 0.0, 0.0, False, "no model"))
    with pytest.raises(NpukitError, match="no model"):
        tune(config(), CPU, tmp_path)
