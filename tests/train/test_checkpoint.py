"""A run that was stopped goes on as if it had not been; what is broken or does not fit is said."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from npukit.errors import NpukitError
from npukit.train.checkpoint import read, sealed

STEPS = 30


class Stopped(Exception):
    pass


def stopping_at(step: int, loss: Any) -> Any:
    """A loss that raises in its last batch of a step; two batches make one."""
    calls = 0

    def stop(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 * step:
            raise Stopped
        return loss(model, batch)

    return stop


@pytest.fixture
def undisturbed(other_job: Any) -> Any:
    other_job(epochs=9, max_steps=STEPS, save_every=4).train()
    return other_job.weights()


def interrupt(job: Any, step: int, **options: Any) -> None:
    trainer = job(loss=stopping_at(step, job.loss), epochs=9, max_steps=STEPS, save_every=4, **options)
    with pytest.raises(Stopped):
        trainer.train()


@pytest.mark.parametrize("async_save", [False, True])
def test_a_resumed_run_ends_bit_identical(job: Any, undisturbed: Any, are_same: Any, async_save: bool) -> None:
    interrupt(job, 11, async_save=async_save)  # in the middle of the first epoch, after checkpoint 8
    interrupt(job, 8, async_save=async_save)  # counted from there, in the second epoch
    trainer = job(epochs=9, max_steps=STEPS, save_every=4, async_save=async_save)
    summary = trainer.train()
    assert are_same(job.weights(), undisturbed)
    assert summary.steps == STEPS
    logged = [json.loads(line) for line in (job.output / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in logged if "loss" in row] == [1, 2, 10, 20, 30]


def cut(folder: Path) -> None:
    state = folder / "rank-0.pt"
    state.write_bytes(state.read_bytes()[:-1])


def flip_a_bit(folder: Path) -> None:
    state = folder / "rank-0.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)


def change_the_list(folder: Path) -> None:
    contents = json.loads((folder / "checkpoint.json").read_text())
    (folder / "checkpoint.json").write_text(json.dumps({**contents, "files": 5}))


def change_the_step(folder: Path) -> None:
    contents = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(contents.replace('"step": 16', '"step": 12'))


def change_the_seed(folder: Path) -> None:
    contents = (folder / "checkpoint.json").read_text()
    (folder / "checkpoint.json").write_text(contents.replace('"seed": 42', '"seed": 43'))


def swap_files(folder: Path) -> None:
    (folder / "rank-0.pt").rename(folder / "beside")
    (folder / "model.safetensors").rename(folder / "rank-0.pt")
    (folder / "beside").rename(folder / "model.safetensors")


DAMAGES = [cut, flip_a_bit, change_the_list, change_the_step, change_the_seed, swap_files]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_checkpoint_is_left_out_and_a_half_written_one_removed(
    job: Any, undisturbed: Any, are_same: Any, damage: Callable[[Path], None]
) -> None:
    interrupt(job, 18)
    half = job.output / "checkpoint-20.part"
    half.mkdir()
    (half / "rank-0.pt").write_bytes(b"half")
    damage(job.output / "checkpoint-16")
    with pytest.raises(NpukitError, match="checkpoint-16"):
        job(resume=job.output / "checkpoint-16", epochs=9, max_steps=STEPS).train()
    with pytest.warns(UserWarning, match="checkpoint-16"):
        job(epochs=9, max_steps=STEPS, save_every=4).train()
    assert are_same(job.weights(), undisturbed)
    assert not half.exists()


def test_a_renamed_checkpoint_is_left_out(job: Any, undisturbed: Any, are_same: Any) -> None:
    interrupt(job, 18)
    shutil.copytree(job.output / "checkpoint-12", job.output / "checkpoint-18")
    with pytest.warns(UserWarning, match="checkpoint-18 was renamed"):
        summary = job(epochs=9, max_steps=STEPS, save_every=4).train()
    assert are_same(job.weights(), undisturbed) and summary.steps == STEPS
    assert (job.output / "checkpoints.before" / "checkpoint-18").is_dir()


def test_ranks_that_found_different_checkpoints_do_not_train(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job(max_steps=8, save_every=4).train()
    trainer = job(max_steps=8)
    monkeypatch.setattr(trainer.parallel, "gather", lambda step: [step, 4])
    with pytest.raises(NpukitError, match=r"step 8 on rank 0, step 4 on rank 1") as raised:
        trainer.train()
    assert raised.value.exit_code == 2, "nothing was started"
    assert job.checkpoints() == [4, 8]


def test_a_damaged_best_checkpoint_is_not_replaced_by_another_model(job: Any) -> None:
    figures = iter([1.0, 3.0])
    options = {"max_steps": 4, "eval_every": 2, "save_every": 2, "load_best": True}

    def measured(model: Any, batch: Any) -> Any:
        if len(job.checkpoints()):
            flip_a_bit(job.output / "checkpoint-2")
        return {"loss": torch.tensor(next(figures))}

    with pytest.raises(NpukitError, match=r"checkpoint-2 is damaged.*load_best") as raised:
        job(eval_rows=[(torch.zeros(6), torch.zeros(()))], arguments={"metrics": measured}, **options).train()
    assert raised.value.exit_code == 1 and not (job.output / "model.safetensors").exists()


def test_no_bit_of_a_checkpoint_can_flip_unnoticed(job: Any) -> None:
    """A bit in every byte of the list, and bits all over the rest: the checkpoint is refused, or it reads as it was."""
    job(max_steps=2).train()
    folder = job.output / "checkpoint-2"
    whole = read(folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"checkpoint.json", "rank-0.pt", "model.safetensors"}
    for path in files:
        content = path.read_bytes()
        for place in range(0, len(content), 1 if path.name == "checkpoint.json" else len(content) // 50 | 1):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            path.write_bytes(flipped)
            try:
                assert read(folder) == whole, (path.name, place)
            except NpukitError:
                continue
        path.write_bytes(content)
    assert read(folder) == whole


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"batch_size": 4}, "batch_size 2, .* 4"),
        ({"seed": 1}, "seed 42, .* 1"),
        ({"rows": [(torch.zeros(6), torch.zeros(()))] * 5}, "12 steps an epoch instead of 2"),
    ],
)
def test_what_does_not_fit_is_refused(job: Any, change: dict[str, Any], sentence: str) -> None:
    job(max_steps=4).train()
    with pytest.raises(NpukitError, match=sentence):
        job(max_steps=8, **change).train()


def test_another_model_is_refused(job: Any) -> None:
    job(max_steps=4).train()
    other = job.model()
    other[4] = torch.nn.Linear(16, 1, bias=False)
    with pytest.raises(NpukitError, match=r"another model, .* 4.bias differ"):
        job(other, max_steps=8).train()


def test_another_number_of_ranks_is_refused(job: Any) -> None:
    job(max_steps=4).train()
    contents = job.output / "checkpoint-4" / "checkpoint.json"
    written = json.loads(contents.read_text())
    written["run"]["world_size"] = 2
    contents.write_text(json.dumps(sealed(written)))
    with pytest.raises(NpukitError, match=r"world_size 2, .* 1"):
        job(max_steps=8).train()


def test_the_newest_and_the_best_are_kept(job: Any) -> None:
    figures = iter([5.0, 1.0, 3.0, 2.0, 4.0])
    metrics = {"loss": torch.zeros(())}

    def measured(model: Any, batch: Any) -> Any:
        return {"loss": metrics["loss"] + next(figures)}

    options = {"epochs": 9, "max_steps": 10, "eval_every": 2, "save_every": 2, "save_total_limit": 2}
    job(eval_rows=[(torch.zeros(6), torch.zeros(()))], arguments={"metrics": measured}, **options).train()
    assert job.checkpoints() == [4, 8, 10]


def test_never_begins_anew_and_keeps_what_was_there(job: Any, are_same: Any) -> None:
    job(max_steps=8, save_every=4).train()
    first = job.weights()
    assert job(max_steps=8, save_every=4, resume="never").train().steps == 8
    assert are_same(job.weights(), first)
    assert (job.output / "checkpoints.before" / "checkpoint-8").is_dir()


def test_a_checkpoint_holds_the_model_and_can_be_named(job: Any, other_job: Any, are_same: Any) -> None:
    job(max_steps=8, save_every=4).train()
    checkpoint = read(job.output / "checkpoint-4")
    assert checkpoint.step == 4 and (checkpoint.folder / "model.safetensors").exists()
    other_job(max_steps=8, resume=checkpoint.folder).train()
    assert are_same(job.weights(), other_job.weights())


def test_what_this_run_was_given_counts_not_what_the_checkpoint_had(job: Any) -> None:
    job(max_steps=2, schedule="constant").train()
    changed = {"learning_rate": 1e-4, "weight_decay": 0.2, "betas": (0.8, 0.9)}
    trainer = job(max_steps=4, schedule="constant", log_every=1, **changed)
    trainer.train()
    logged = [json.loads(line) for line in (job.output / "log.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in logged if "loss" in row] == [1e-2, 1e-2, 1e-4, 1e-4]
    group = trainer.parallel.optimizer.param_groups[0]
    assert group["weight_decay"] == 0.2 and group["betas"] == (0.8, 0.9)


def test_a_run_that_was_finished_before_tells_the_same(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first = job(max_steps=2).train()
    log = (job.output / "log.jsonl").read_text()
    capsys.readouterr()
    again = job(max_steps=2).train()
    assert "2 steps" in capsys.readouterr().out
    assert again.checkpoint == first.checkpoint and (job.output / "log.jsonl").read_text() == log


def test_a_folder_that_is_no_checkpoint_is_said(job: Any) -> None:
    with pytest.raises(NpukitError, match=r"checkpoint\.json"):
        job(resume=job.output / "checkpoint-9").train()


def test_frozen_weights_are_not_in_the_state(job: Any) -> None:
    trainer = job(max_steps=2)
    trainer.parallel.module[0].requires_grad_(False)
    trainer.train()
    state = read(job.output / "checkpoint-2").load(0)["parallel"]["model"]
    assert "0.weight" not in state and "4.weight" in state
    assert "0.weight" in job.weights()


FULL_DISKS = [
    OSError(errno.ENOSPC, "No space left on device"),
    Exception("I/O error: No space left on device (os error 28)"),  # as safetensors says it
]


@pytest.mark.parametrize("error", FULL_DISKS)
def test_a_full_disk_is_said_and_leaves_the_last_good_one(job: Any, error: Exception) -> None:
    saved = 0

    def save(model: Any, weights: Any, folder: Any) -> None:
        nonlocal saved
        saved += 1
        if saved == 2:
            raise error

    with pytest.raises(NpukitError, match="checkpoint-8: the disk is full") as raised:
        job(max_steps=8, save_every=4, arguments={"save_model": save}).train()
    assert raised.value.exit_code == 1, "it failed on the way"
    assert not list(job.output.glob("*.part"))
    assert read(job.output / "checkpoint-4").step == 4
    assert job(max_steps=8, save_every=4).train().steps == 8


@pytest.mark.parametrize("error", FULL_DISKS)
def test_a_full_disk_at_the_end_is_said(job: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise error

    def summary_is_not_written(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(NpukitError, match="output: the disk is full"):
        job(max_steps=2, save_every=None, arguments={"save_model": full}).train()
    monkeypatch.setattr("npukit.train.watch.watch.Summary.write", summary_is_not_written)
    with pytest.raises(NpukitError, match="checkpoint-1: the disk is full"):
        job(max_steps=2, save_every=1, arguments={"save_model": full}).train()


def test_an_output_that_cannot_be_is_said(job: Any) -> None:
    job.output.write_text("a file")
    with pytest.raises(NpukitError, match="output folder"):
        job(max_steps=1).train()


def test_a_run_that_resumes_says_what_it_does_differently(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job(max_steps=2, arguments={"noted": {"data": "a.json"}}).train()
    capsys.readouterr()
    job(max_steps=4, learning_rate=1e-4, log_every=1, arguments={"noted": {"data": "b.json"}}).train()
    changed = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("changed"))
    assert changed.partition(": ")[2] == "max_steps 2 → 4, learning_rate 0.01 → 0.0001, data a.json → b.json"


def test_what_cannot_go_on_is_refused_by_its_name(job: Any) -> None:
    job(max_steps=2, arguments={"must_stay": {"tuning.rank": 4}}).train()
    with pytest.raises(NpukitError, match=r"tuning\.rank 4, but this run has 8") as raised:
        job(max_steps=4, arguments={"must_stay": {"tuning.rank": 8}}).train()
    assert raised.value.exit_code == 2, "nothing was started"
    contents = job.output / "checkpoint-2" / "checkpoint.json"
    written = json.loads(contents.read_text())
    del written["run"]["tuning.rank"]  # as an older version wrote it
    contents.write_text(json.dumps(sealed(written)))
    assert job(max_steps=4, arguments={"must_stay": {"tuning.rank": 8}}).train().steps == 4


def test_what_a_fault_spoilt_is_not_saved(job: Any) -> None:
    calls = 0

    def loss(model: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        return job.loss(model, batch) * (1e6 if calls == 9 else 1)  # in step 5, of two batches each

    watched = {"enable": True, "action": "stop"}
    with pytest.raises(NpukitError, match="step 5"):
        job(max_steps=8, save_every=1, log_every=100, feature_detection=watched, loss=loss).train()
    assert job.checkpoints()[-1] == 4
