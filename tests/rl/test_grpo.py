"""GRPO: the whole way from prompts to a model that earns more."""

from __future__ import annotations

import itertools
import json
import math
import multiprocessing
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.rl.conftest import log_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.finetune.train import train as train_rm
from npukit.rl.rank import train
from npukit.rl.rewards.scorer import Scorer
from npukit.train import checkpoint

Counting = Callable[..., Config]


def completions(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "completions.jsonl").read_text().splitlines()]


def test_a_model_learns_what_is_rewarded(counting: Counting, tmp_path: Path) -> None:
    train(counting(training={"max_steps": 20}))
    log = log_of(tmp_path / "run")
    assert log[0]["reward"] < 0.4 and log[-1]["reward"] > 0.9
    assert max(entry["sampling/logp_difference"] for entry in log) < 1e-5  # sampler and learner are one model
    kept = completions(tmp_path / "run")
    assert len(kept) == 20 * 32 and kept[-1]["messages"][-1]["role"] == "assistant"
    assert kept[-1]["rewards"]["low"] == kept[-1]["reward"]


class Killed(BaseException):
    """Nothing catches it."""


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the second generation is rewarded, then while a checkpoint is written; both times it goes on in the
    middle of a generation, with all that was noted of its answers.
    """
    grpo = {"num_iterations": 2, "steps_per_generation": 2, "beta": 0.1, "top_entropy_quantile": 0.5}
    grpo["temperature"] = 0.8
    training = {"max_steps": 6, "save_every": 3, "batch_size": 16, "learning_rate": 1e-3, "async_save": False}
    config = counting(grpo=grpo, tuning={"method": "lora", "dropout": 0.5}, training=training)
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(config)
    run.rename(whole)

    moments: tuple[tuple[Any, str, int], ...] = ((Scorer, "score", 2), (checkpoint, "hash_files", 1))
    for owner, name, call in moments:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, killing(getattr(owner, name), call))
            with pytest.raises(Killed):
                train(config)
        assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-3"]
    train(config)
    weights, again = (load_file(folder / "adapter_model.safetensors") for folder in (whole, run))
    assert all(weights[name].equal(again[name]) for name in weights)
    assert completions(run) == completions(whole)
    log = log_of(whole)
    assert [entry["loss"] for entry in log_of(run)] == [entry["loss"] for entry in log]
    assert sorted({answer["step"] for answer in completions(run)}) == [1, 5]
    assert log[1]["clip_ratio/low"] + log[1]["clip_ratio/high"] + log[2]["kl"] > 0


def killing(called: Callable[..., Any], at: int) -> Callable[..., Any]:
    """A function that ends the run when it is called for this time, after it has done its work."""
    calls = itertools.count(1)

    def counted(*args: Any, **more: Any) -> Any:
        result = called(*args, **more)
        if next(calls) == at:
            raise Killed
        return result

    return counted


def test_a_run_goes_on_with_generations_of_the_same_kind_only(
    counting: Counting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training = {"max_steps": 1, "save_every": 1, "batch_size": 8}
    train(counting(training=training))
    for other in ({"num_generations": 4}, {"num_iterations": 2}):
        with pytest.raises(NpukitError, match=f"written with grpo.{next(iter(other))}"):
            train(counting(grpo=other, training={**training, "max_steps": 2}))
    train(counting(grpo={"epsilon": 0.1}, training={**training, "max_steps": 2}))
    assert len(log_of(tmp_path / "run")) == 2 and "grpo.epsilon 0.2 → 0.1" in capsys.readouterr().out


def test_what_gives_no_reward_is_refused(counting: Counting, tiny_qwen2: Path, tmp_path: Path) -> None:
    """A model without a score would get a random one."""
    (tmp_path / "rewards.py").write_text("def mine(texts):\n    return [1.0 for _ in texts]\n")
    for rewards in ({}, {"plugins": [], "models": [str(tiny_qwen2)]}):
        with pytest.raises(NpukitError, match="rewards"):
            train(counting(rewards=rewards))


def test_a_reward_model_that_was_trained_here_rewards(counting: Counting, tiny_qwen2: Path, tmp_path: Path) -> None:
    pairs = [{"messages": ask("Say 1.", "One."), "rejected_response": "No."}] * 2
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    judge = tmp_path / "judge"
    train_rm(
        Config(
            task="rm",
            model={"path": str(tiny_qwen2)},
            tuning={"method": "full"},
            data={"train": str(tmp_path / "pairs.jsonl"), "cache": False, "preprocessing_workers": 1},
            training={"output": judge, "max_steps": 2, "batch_size": 2, "plot": False, "save_every": None},
        )
    )
    train(counting(rewards={"plugins": [], "models": [str(judge)]}, training={"max_steps": 1, "batch_size": 8}))
    model = AutoModelForSequenceClassification.from_pretrained(judge).requires_grad_(False)
    tokenizer = AutoTokenizer.from_pretrained(judge)
    for answer in completions(tmp_path / "run"):
        ids = tokenizer.apply_chat_template(answer["messages"], return_tensors="pt", return_dict=True)
        assert answer["rewards"] == {"judge": pytest.approx(float(model(**ids).logits[0, 0]), abs=1e-5)}
    assert log_of(tmp_path / "run")[0]["reward"] != 0


def ask(question: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def train_as_rank(rank: int, port: int, config: Config) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    train(config)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_two_ranks_do_what_one_does(counting: Counting, tmp_path: Path) -> None:
    """Whatever groups they share: each rank has a batch of 4, and a group 8 answers."""
    options = {"loss_type": "grpo", "beta": 0.1, "scale_rewards": "batch"}
    with (tmp_path / "rewards.py").open("a") as file:
        file.write("def odd(completions, completion_ids):\n    assert all(sum(ids) % 3 for ids in completion_ids)\n")
        file.write("    return [0.0] * len(completions)\n")
    together = counting(grpo=options, training={"batch_size": 4, "accumulation": 4, "output": str(tmp_path / "one")})
    apart = counting(grpo=options, training={"batch_size": 4, "accumulation": 2, "output": str(tmp_path / "two")})
    fork, port = multiprocessing.get_context("fork"), free_port()
    ranks = [fork.Process(target=train_as_rank, args=(rank, port, apart)) for rank in range(2)]
    for process in ranks:
        process.start()
    train(together)
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    one, two = log_of(tmp_path / "one"), log_of(tmp_path / "two")
    names = ("loss", "grad_norm", "reward", "kl", "entropy", "clip_ratio/low", "completions/mean_length")
    for first, second in zip(one, two, strict=True):
        assert [second[name] for name in names] == pytest.approx([first[name] for name in names], rel=1e-4, abs=1e-6)
    failed = [entry["rewards/odd/failed"] for entry in one]
    assert failed == [entry["rewards/odd/failed"] for entry in two] and all(failed)
    assert [completion["messages"] for completion in completions(tmp_path / "one")][:32] == [
        completion["messages"] for completion in completions(tmp_path / "two")
    ][:32]


def test_rewards_that_misbehave_are_counted_and_nothing_else_happens(counting: Counting, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        """
def odd(completions, trainer_state, **kwargs):
    step = trainer_state.global_step
    if step == 0:
        return [None] * len(completions)
    if step == 1:
        raise ValueError("no")
    return [1.0] * len(completions) if step == 2 else [float("nan"), "good"] * (len(completions) // 2)
"""
    )
    train(counting(training={"max_steps": 4, "batch_size": 8}))
    log = log_of(tmp_path / "run")
    assert [entry.get("rewards/odd/failed", 0.0) for entry in log] == [0, 8, 0, 8]
    assert [entry["frac_reward_zero_std"] for entry in log] == [1, 1, 1, 1]
    assert all(math.isfinite(value) for entry in log for value in entry.values() if isinstance(value, float))
    assert [answer["reward"] for answer in completions(tmp_path / "run")[:8]] == [None] * 8


def test_nothing_is_learnt_from_answers_that_are_all_cut_off(counting: Counting, tmp_path: Path) -> None:
    train(counting(grpo={"mask_truncated_completions": True, "max_completion_length": 2}, training={"batch_size": 8}))
    for entry in log_of(tmp_path / "run"):
        assert entry["completions/clipped_ratio"] == 1 and entry["loss"] == entry["grad_norm"] == 0


def test_groups_without_a_signal_give_way_to_others(counting: Counting, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "def some(completion_ids, completions, answer):\n"
        "    return [0.0 if wanted < 4 else float(sum(ids) % 7) for ids, wanted in zip(completion_ids, answer)]\n"
    )
    train(counting(grpo={"dynamic_sample": True, "max_resample_times": 5}, training={"max_steps": 1}))
    asked = {answer["messages"][0]["content"] for answer in completions(tmp_path / "run")}
    assert log_of(tmp_path / "run")[0]["frac_reward_zero_std"] > 0
    assert asked <= {f"Say {number}." for number in range(4, 8)}


def test_held_out_prompts_are_answered_in_an_evaluation(counting: Counting, tmp_path: Path) -> None:
    train(counting(data={"validation": 2}, training={"max_steps": 1, "eval_every": 1, "batch_size": 8}))
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    evaluation = next(line for line in lines if "eval_reward" in line)
    assert 0 <= evaluation["eval_reward"] == -evaluation["eval_loss"] <= 1


def test_a_prompt_longer_than_the_model_reads_is_left_out(
    counting: Counting, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = counting(data={"cutoff": 100_000}, training={"max_steps": 1})
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write(json.dumps({"messages": ask("Say 1. " * 3000, "")[:1], "answer": 1}) + "\n")
    train(config)
    assert len(log_of(tmp_path / "run")) == 1 and "1 of 9 rows" in capsys.readouterr().out


def test_gspo_is_a_level_and_no_loss(counting: Counting) -> None:
    with pytest.raises(NpukitError, match="importance_sampling_level"):
        counting(grpo={"loss_type": "gspo"})


def test_prompts_without_room_in_the_cache_are_counted(
    counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where none has room."""
    with (tmp_path / "rows.jsonl").open("w") as file:
        for number in range(8):
            file.write(json.dumps({"messages": ask(f"{number} " * (40 if number else 1), "")[:1]}) + "\n")
    config = counting(data={"cutoff": 1000}, grpo={"num_generations": 2}, training={"batch_size": 4, "max_steps": 4})
    for blocks, answered in ((3, True), (1, False)):
        monkeypatch.setattr("npukit.inference.engine.engine.blocks_that_fit", lambda *_, many=blocks, **__: many)
        train(config)
        log = log_of(tmp_path / "run")
        assert sum(entry.get("prompts/too_long", 0) for entry in log) == (14 if answered else 16)
        assert all(math.isfinite(value) for entry in log for value in entry.values() if isinstance(value, float))
        shutil.rmtree(tmp_path / "run")


def test_a_number_of_answers_that_makes_no_groups_is_refused_before_a_model_is_read(counting: Counting) -> None:
    with pytest.raises(NpukitError, match=r"grpo\.num_generations"):
        train(counting(model={"path": "/nowhere"}, training={"batch_size": 12}))


def test_the_command_refuses_it_too(counting: Counting, npukit: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "train.yaml"
    file.write_text(counting(training={"batch_size": 4}).model_dump_json())
    assert npukit("train", file, "--dry-run", "--device", "cpu", "--devices", "2").returncode == 0
    for more in ([], ["--dry-run"]):
        assert npukit("train", file, "--device", "cpu", "--devices", "3", *more).returncode == 2
