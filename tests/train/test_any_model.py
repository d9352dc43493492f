"""Models, data and functions as people have them: what cannot be used is said in a sentence."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo.utils
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, default_collate

from npukit.errors import NpukitError
from npukit.train.checkpoint import read


def logged(job: Any, name: str) -> list[Any]:
    return [row[name] for row in map(json.loads, (job.output / "log.jsonl").read_text().splitlines()) if name in row]


def test_twenty_steps_are_those_of_a_loop_by_hand(job: Any) -> None:
    """Weights, buffers and every line of the log, with two groups, clipping, warm-up, accumulation and dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 9, bias=False), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.3), nn.Linear(9, 1))
    by_hand = copy.deepcopy(model)
    rows = job.rows(320)
    options = {
        "shuffle": False,
        "warmup": 4,
        "weight_decay": 0.1,
        "log_every": 1,
        "max_grad_norm": 2.0,
        "batch_size": 8,
    }
    job(model, rows, epochs=1, **options).train()

    decayed, others = ([w for w in by_hand.parameters() if (w.dim() > 1) is many] for many in (True, False))
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], 1e-2
    )
    torch.manual_seed(42)
    expected = []
    for step in range(20):
        rate = 1e-2 * (step / 4 if step < 4 else (1 + math.cos(math.pi * (step - 4) / 16)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        batches = [default_collate(rows[at : at + 8]) for at in (16 * step, 16 * step + 8)]
        losses = [job.loss(by_hand, batch) for batch in batches]
        for loss in losses:
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(by_hand.parameters(), 2.0)
        expected.append((sum(loss.item() for loss in losses) / 2, norm.item(), rate))
        optimizer.step()
        optimizer.zero_grad()
    for name, column in zip(("loss", "grad_norm", "learning_rate"), zip(*expected, strict=True), strict=True):
        assert logged(job, name) == pytest.approx(column, rel=1e-5), name
    for name, value in by_hand.state_dict().items():
        torch.testing.assert_close(job.weights()[name], value, rtol=0, atol=1e-6)


def test_groups_of_ones_own_decay_as_the_options_say_and_may_be_iterators(job: Any) -> None:
    model = job.model()
    before = model[0].weight.clone()
    groups = [{"params": model[:3].parameters(), "lr": 1e-3}, {"params": model[3:].parameters(), "weight_decay": 0.0}]
    trainer = job(model, max_steps=2, weight_decay=0.3, log_every=1, arguments={"parameter_groups": groups})
    assert [group["weight_decay"] for group in trainer.parallel.optimizer.param_groups] == [0.3, 0.0]
    trainer.train()
    assert not torch.equal(model[0].weight, before)
    assert logged(job, "learning_rate") == pytest.approx([1e-3, 0.5e-3])


def test_other_groups_than_the_checkpoints_are_refused(job: Any) -> None:
    model = job.model()
    groups = [
        {"params": [w for w in model.parameters() if (w.dim() > 1) is many], "lr": np.float64(1e-3)}
        for many in (True, False)
    ]
    for max_steps in (2, 3):  # it goes on, whatever type a setting has
        job(model, max_steps=max_steps, arguments={"parameter_groups": groups}).train()
    model = job.model()
    with pytest.raises(NpukitError, match="parameter_groups"):
        job(model, max_steps=4, arguments={"parameter_groups": [{"params": model.parameters()}]}).train()


def test_a_batch_with_names_first_is_counted_and_one_that_cannot_be_is_said(job: Any) -> None:
    rows = [{"name": str(number), "x": x, "y": y} for number, (x, y) in enumerate(job.rows(6))]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return job.loss(model, (batch["x"], batch["y"]))

    assert job(rows=rows, loss=loss, epochs=1).train().items == 6
    with pytest.raises(NpukitError, match=r"batch \(str\).* weight"):
        job(rows=rows, arguments={"collate": lambda rows: "a batch"}, resume="never", workers=1).train()


def test_a_data_loader_and_an_iterator_at_its_end_are_said(job: Any) -> None:
    with pytest.raises(NpukitError, match="not a DataLoader"):
        job(rows=DataLoader(job.rows()))
    with pytest.raises(NpukitError, match="iterator"):
        job(rows=iter(job.rows(8)), max_steps=3).train()


def test_a_loss_is_one_number_in_any_shape(job: Any) -> None:
    job(loss=lambda model, batch: job.loss(model, batch)[None], max_steps=1, eval_rows=job.rows(2)).train()
    with pytest.raises(NpukitError, match=r"^loss .* shape \(2,\)"):
        job(loss=lambda model, batch: model(batch[0]).squeeze(-1), max_steps=1, resume="never").train()


def test_metrics_may_be_plain_numbers_without_a_loss_among_them(job: Any) -> None:
    arguments = {"metrics": lambda model, batch: {"accuracy": 0.25}}
    summary = job(eval_rows=job.rows(3), max_steps=2, arguments=arguments).train()
    assert summary.evaluation == {"eval_accuracy": 0.25} and job.weights()


def test_a_metric_is_the_mean_over_the_batches_that_have_it(job: Any) -> None:
    """As the accuracy of a class that is not in every batch."""
    figures = iter([{"cat": 0.5}, {"dog": 1.0}, {"cat": 1.0}])
    arguments = {"metrics": lambda model, batch: next(figures)}
    summary = job(eval_rows=job.rows(5), max_steps=1, arguments=arguments).train()
    assert summary.evaluation == pytest.approx({"eval_cat": (0.5 * 2 + 1.0) / 3, "eval_dog": 1.0})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"accuracy": 0.25}, "^best_metric: eval_acc .* eval_accuracy"),
        ({"accuracy": torch.ones(2)}, r"^metrics .*accuracy.* shape \(2,\)"),
        ({}, "^metrics .* no value"),
        (None, "^metrics .*NoneType"),
    ],
)
def test_an_evaluation_that_fails_loses_nothing(job: Any, value: Any, sentence: str) -> None:
    arguments = {"metrics": lambda model, batch: value}
    with pytest.raises(NpukitError, match=sentence):
        job(eval_rows=job.rows(3), max_steps=2, best_metric="eval_acc", arguments=arguments).train()
    assert job.checkpoints() == [2]


def test_an_evaluation_that_is_not_a_number_is_never_the_best(job: Any) -> None:
    figures = iter([math.nan, 3.0, 2.0])
    arguments = {"metrics": lambda model, batch: {"loss": next(figures)}}
    options = {"eval_every": 2, "early_stopping": 3, "save_every": 100, "max_steps": 6}
    summary = job(eval_rows=job.rows(2), arguments=arguments, **options).train()
    assert summary.reason == "finished" and job.checkpoints() == [4, 6]


class Shuffled(IterableDataset[tuple[Tensor, Tensor]]):
    """A stream that draws from all generators while it is read."""

    def __init__(self, rows: list[tuple[Tensor, Tensor]]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = random.sample(self.rows, len(self.rows))
        return ((x + torch.randn(6), y) for x, y in rows)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_random_stream_resumes_bit_identical(job: Any, other_job: Any, are_same: Any, workers: int) -> None:
    stream, options = Shuffled(job.rows(10)), {"workers": workers, "schedule": "constant", "save_every": 4}
    job(rows=stream, max_steps=4, **options).train()  # in the middle of the second epoch
    job(rows=stream, max_steps=8, **options).train()
    other_job(rows=stream, max_steps=8, **options).train()
    assert are_same(job.weights(), other_job.weights())


def test_compile_compiles_a_sequence_too(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()  # another test may have compiled it in this process
    counters = torch._dynamo.utils.counters
    counters.clear()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    job(compile=True, max_steps=2).train()
    assert counters["stats"]["unique_graphs"] == 1


def test_batch_norm_counts_a_batch_once_when_activations_are_checkpointed(job: Any) -> None:
    buffers = []
    for checkpointing in (False, True):
        torch.manual_seed(0)
        part = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        job(
            nn.Sequential(part, nn.Linear(8, 1)), max_steps=3, resume="never", activation_checkpointing=checkpointing
        ).train()
        buffers.append(dict(part[1].named_buffers()))
    assert all(torch.equal(buffers[0][name], buffers[1][name]) for name in buffers[0])
    assert int(buffers[1]["num_batches_tracked"]) == 6


def test_frozen_weights_with_two_names_are_not_in_the_state(job: Any) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    job(model, max_steps=1).train()
    assert {"0.weight", "1.weight"}.isdisjoint(read(job.output / "checkpoint-1").load(0)["parallel"]["model"])
    assert "0.weight" in job.weights()


TWO_RANKS = """
import os, sys, torch
from torch import nn
from npukit.errors import NpukitError
from npukit.train import Trainer, TrainOptions

class Model(nn.Module):
    def __init__(self, used):
        super().__init__()
        self.first, self.sometimes, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)
        self.used = used
    def forward(self, x):
        return self.last(self.sometimes(self.first(x)) if self.used else self.first(x))

def train(used, rows, **options):
    usual = {"output": sys.argv[1], "batch_size": 2, "max_steps": 3, "resume": "never", "plot": False, "shuffle": False}
    chosen = TrainOptions(**usual, **options)
    loss = lambda model, batch: model(batch).square().mean()
    metrics = lambda model, batch: {f"of_{os.environ['RANK']}": model(batch).mean() * 0 + 2.0}
    trainer = Trainer(Model(used), chosen, rows, rows[:4], loss=loss, metrics=metrics)
    try:
        return str(trainer.train().evaluation)
    except NpukitError as error:
        return str(error)

rows = torch.randn(20, 4)
told = [train(False, rows), train(False, rows, find_unused_parameters=True)]
rows[11, 0] = torch.nan
told.append(train(True, rows))
if os.environ["RANK"] == "0":  # which has the even batches
    print("\\n".join(f"told: {sentence}" for sentence in told))
"""


@pytest.mark.usefixtures("copies")
def test_two_ranks_tell_of_unused_parameters_of_each_others_metrics_and_of_the_other_ranks_nan(tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO_RANKS)
    command = [sys.executable, "-m", "npukit", "run", "--device", "cpu", "--devices", "2", script, tmp_path / "output"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    notes = [line.partition("told: ")[2] for line in done.stdout.splitlines() if "told: " in line]
    assert "took no part in the loss of a step (sometimes.weight, sometimes.bias)" in notes[0]
    assert notes[1] == "{'eval_of_0': 2.0, 'eval_of_1': 2.0}"
    assert re.search("nan at step 3. Rank 1, rows 10, 11 of the data: The batch itself .* 1 NaN", notes[2])
