"""What a step does, and when a run ends."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.train.checkpoint import read

PLAIN = {"shuffle": False, "optimizer": "sgd", "max_grad_norm": 0, "schedule": "constant"}


def test_a_step_follows_the_mean_over_all_its_items_however_they_are_split(job: Any) -> None:
    """Against the same step by hand: rows count 0 to 3 times, and not evenly in each batch."""
    counts = torch.arange(8.0) % 4
    rows = [(*row, count) for row, count in zip(job.rows(8), counts, strict=True)]

    def mean(model: nn.Module, batch: Any) -> Tensor:
        errors = (model(batch[0]).squeeze(-1) - batch[1]) ** 2
        return (errors * batch[2]).sum() / batch[2].sum()

    by_hand = job.model(dropout=0.0)
    optimizer = torch.optim.SGD(by_hand.parameters(), lr=1e-2)
    mean(by_hand, [torch.stack(column) for column in zip(*rows, strict=True)]).backward()
    optimizer.step()
    arguments = {"weight": lambda batch: int(batch[2].sum())}
    for batch_size in (1, 2, 8):
        options = {**PLAIN, "batch_size": batch_size, "accumulation": 8 // batch_size, "resume": "never"}
        job(job.model(dropout=0.0), rows, loss=mean, arguments=arguments, max_steps=1, **options).train()
        for name, value in by_hand.state_dict().items():
            torch.testing.assert_close(job.weights()[name], value, rtol=0, atol=1e-6)


def test_length_of_a_run(job: Any) -> None:
    assert job(epochs=2).total_steps == 24
    assert job(epochs=0.5).total_steps == 6
    assert job(epochs=2, max_steps=5).total_steps == 5
    assert job(epochs=2, max_steps=30).total_steps == 30, "as in transformers, whatever the epochs"
    with pytest.raises(NpukitError, match="max_steps"):
        job(rows=iter(job.rows()))
    assert job(rows=iter(job.rows()), max_steps=3, save_every=None).train().steps == 3


def test_no_worker_outlives_the_run(job: Any) -> None:
    """At the end of a process torch before 2.13 waits five seconds for each that is left."""
    before = set(multiprocessing.active_children())
    trainer = job(max_steps=2, workers=2)
    trainer.train()
    assert set(multiprocessing.active_children()) <= before


def test_early_stopping_and_the_best(job: Any) -> None:
    figures = iter([5.0, 1.0, 3.0, 2.0, 4.0])

    def measured(model: Any, batch: Any) -> dict[str, Tensor]:
        return {"error": torch.tensor(next(figures))}

    options = {"eval_every": 2, "early_stopping": 2, "best_metric": "eval_error", "save_total_limit": 1}
    summary = job(eval_rows=job.rows(2), arguments={"metrics": measured}, **options).train()
    assert (summary.steps, summary.exit_code, summary.model_step) == (8, 0, 8)
    assert summary.best_checkpoint == str(job.output / "checkpoint-4")
    assert summary.reason == "stopped early: eval_error was best at step 4"
    assert summary.best == "eval_error 1.0000 at step 4"
    assert job.checkpoints() == [4, 8]
    again = job(eval_rows=job.rows(2), arguments={"metrics": measured}, **options)
    assert again.train().steps == 8  # it stays stopped


@pytest.mark.parametrize("async_save", [False, True])
def test_the_best_model_can_be_the_one_that_is_written(job: Any, are_same: Any, async_save: bool) -> None:
    figures = iter([5.0, 1.0, 3.0])
    metrics = {"metrics": lambda model, batch: {"loss": next(figures)}}
    options = {"max_steps": 6, "eval_every": 2, "load_best": True, "save_total_limit": 1, "async_save": async_save}
    trainer = job(eval_rows=job.rows(2), arguments=metrics, **options)
    summary = trainer.train()
    assert (summary.model_step, summary.steps) == (4, 6)
    assert are_same(job.weights(), load_file(job.output / "checkpoint-4" / "model.safetensors"))
    assert not are_same(job.weights(), load_file(job.output / "checkpoint-6" / "model.safetensors"))
    assert are_same(job.weights(), dict(trainer.parallel.module.state_dict())), "in memory, too"


def test_a_run_that_learns_nothing_says_so(job: Any) -> None:
    still = job(loss=lambda model, batch: job.loss(model, batch) * 0, max_steps=5).train()
    assert len(still.notes) == 1 and "gradient is zero" in still.notes[0]
    assert job(max_steps=5, resume="never").train().notes == ()
    risen = iter([1.0, 1.0, 3.0])
    rises = job(
        loss=lambda model, batch: job.loss(model, batch) * 0 + next(risen), max_steps=3, accumulation=1, resume="never"
    )
    assert any("rose" in note for note in rises.train().notes)


def test_the_first_steps_of_a_short_run_are_told(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    summary = job(max_steps=6).train()
    steps = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert steps[:3] == ["1/6", "2/6", "6/6"] and summary.first_loss != summary.last_loss


def test_a_finished_folder_keeps_its_summary(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job(max_steps=3).train()
    before = (job.output / "summary.json").stat().st_mtime_ns
    capsys.readouterr()
    assert job(max_steps=3).train().exit_code == 0
    assert (job.output / "summary.json").stat().st_mtime_ns == before
    assert "loss" not in capsys.readouterr().out, "figures of the run before are no news"


def test_evaluation_is_the_weighted_mean_without_dropout(job: Any) -> None:
    trainer = job(max_steps=1, eval_rows=job.rows(5), eval_batch_size=3)
    summary = trainer.train()
    model, rows = trainer.parallel.module.eval(), job.rows(5)
    expected = job.loss(model, [torch.stack(column) for column in zip(*rows, strict=True)]).item()
    assert summary.evaluation["eval_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"eval_every": 2}, "evaluation data"),
        ({"early_stopping": 2}, "eval_every"),
        ({"load_best": True}, "save_every"),
        ({"best_metric": "eval_accuracy", "eval_rows": [1]}, "eval_loss"),
    ],
)
def test_evaluation_that_cannot_be_is_said(job: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(NpukitError, match=sentence):
        job(**options)


def test_nan_stops_at_its_step_with_rows_and_module_and_finite_weights(job: Any) -> None:
    rows = job.rows()
    rows[17] = (rows[17][0] * math.inf, rows[17][1])
    trainer = job(rows=rows, shuffle=False, log_every=100)
    with pytest.raises(NpukitError, match=r"loss is nan at step 5. Rank 0, rows 16, 17 of the data: .*batch itself"):
        trainer.train()
    assert all(weight.isfinite().all() for weight in trainer.parallel.module.parameters())
    assert trainer.step == 4


class _Overflow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * math.inf


@pytest.mark.parametrize(("save_every", "max_steps"), [(3, 9), (100, 9), (None, 3)])
def test_a_gradient_that_is_not_finite_is_told_with_its_step(job: Any, save_every: int | None, max_steps: int) -> None:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        value = job.loss(model, batch)
        return _Overflow.apply(value) if calls == 6 else value

    with pytest.raises(NpukitError, match="gradient of step 3 is nan"):
        job(loss=loss, save_every=save_every, max_steps=max_steps).train()
    assert job.checkpoints() == [] and not (job.output / "model.safetensors").exists()


def test_fp16_scales_gradients_leaves_out_steps_that_overflow_and_resumes(
    job: Any, other_job: Any, are_same: Any
) -> None:
    options = {"precision": "fp16", "loss_scale": 2.0**15, "save_every": 5, "schedule": "constant"}
    job(max_steps=5, **options).train()
    scale = read(job.output / "checkpoint-5").load(0)["parallel"]["scaler"]["scale"]
    assert 2.0**11 < scale < 2.0**15  # some steps overflowed, not all
    job(max_steps=10, **options).train()
    other_job(max_steps=10, **options).train()
    assert are_same(job.weights(), other_job.weights())


def test_fp16_gradients_that_no_scale_mends_end_the_run(job: Any) -> None:
    with pytest.raises(NpukitError, match=r"gradient of step 19 is still nan.* gradient scaler"):
        loss = lambda model, batch: _Overflow.apply(job.loss(model, batch))  # noqa: E731
        job(loss=loss, precision="fp16", loss_scale=2.0**8, epochs=9).train()


def test_sigterm_saves_and_a_second_run_ends_the_same(job: Any, other_job: Any, are_same: Any) -> None:
    calls = 0

    def loss(model: nn.Module, batch: Any) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 10:
            os.kill(os.getpid(), signal.SIGTERM)
        return job.loss(model, batch)

    summary = job(loss=loss).train()
    assert summary.exit_code == 128 + signal.SIGTERM and 5 <= summary.steps <= 6
    assert summary.model_step is None
    assert job.checkpoints() == [summary.steps]
    job().train()
    other_job().train()
    assert are_same(job.weights(), other_job.weights())


STOPPED = """
import os, signal, sys, torch
from torch import nn
from npukit.train import Trainer, TrainOptions
calls = 0
def loss(model, batch):
    global calls
    calls += 1
    if calls == 3:
        os.killpg(0, signal.SIGTERM)
    return model(batch).square().mean()
options = TrainOptions(output=sys.argv[1], batch_size=2, workers=1, plot=False)
print(Trainer(nn.Linear(4, 1), options, list(torch.randn(400, 4)), loss=loss).train().exit_code)
"""


def test_a_launchers_sigterm_spares_the_data_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "output")]
    result = subprocess.run(command, capture_output=True, text=True, start_new_session=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "143"
    assert list((tmp_path / "output").glob("checkpoint-*"))


def test_out_of_memory_says_what_to_change(job: Any) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise torch.OutOfMemoryError("out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(NpukitError, match="batch_size: 1 and accumulation: 4"):
        job(loss=loss).train()


class Block(nn.Module):
    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, value: Tensor) -> Tensor:
        Block.calls += 1
        return value + nn.functional.dropout(self.linear(value).relu(), 0.5, self.training)


def test_checkpointed_activations_are_computed_twice_and_change_nothing(job: Any, are_same: Any) -> None:
    losses, calls = [], []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.ModuleList([Block(), Block()]), nn.Linear(6, 1))
        model.forward = lambda value, model=model: model[1](model[0][1](model[0][0](value)))  # type: ignore[method-assign]
        Block.calls = 0
        job(model, max_steps=2, resume="never", activation_checkpointing=checkpointing).train()
        losses.append(job.weights())
        calls.append(Block.calls)
    assert are_same(*losses)
    assert calls == [8, 16]


def test_norms_and_biases_do_not_decay(job: Any) -> None:
    trainer = job(weight_decay=0.1)
    groups = trainer.parallel.optimizer.param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(2, 0.1), (4, 0.0)]
