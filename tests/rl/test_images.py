"""GRPO with pictures: answers are sampled and learnt from with the same pixels."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.torch import load_file
from tests.rl.conftest import log_of

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.data.layout import renamed
from npukit.llm.data.prompts import PromptRow
from npukit.llm.data.row import Layout
from npukit.llm.finetune import train as finetune
from npukit.llm.medium import MediaItem
from npukit.llm.tasks.task import named
from npukit.rl.rank import train
from npukit.train import checkpoint

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "<image>What is it?"}], "images": ["a.png"]},
    {"messages": [{"role": "user", "content": "<image>What is it?"}], "images": ["c.png"]},
    {"messages": [{"role": "user", "content": "No picture."}]},
    {"messages": [{"role": "user", "content": "<image> or <image>?"}], "images": ["b.png", "d.png"]},
]
SCHEDULER = """
def again(messages, turn):
    return [{"role": "user", "content": "Are you sure?"}] if turn < 2 else None
"""


@pytest.fixture
def seeing(
    counting: Callable[..., Config], seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path
) -> Callable[..., Config]:
    """`counting` with pictures, for a model of a family."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))

    def made(family: str, rewards: tuple[str, ...] = (), **more: dict[str, Any]) -> Config:
        data = {"cutoff": 512, "media_dir": str(pictures)}
        training = {"batch_size": 8, "accumulation": 2, **more.pop("training", {})}
        grpo = {"num_generations": 4, **more.pop("grpo", {})}
        plugins = {"plugins": [str(tmp_path / "rewards.py"), *rewards]}
        model = {"path": str(seeing_models(family))}
        return counting(model=model, data=data, training=training, grpo=grpo, rewards=plugins, **more)

    return made


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava"])
def test_the_learner_sees_what_the_sampler_saw(family: str, seeing: Callable[..., Config], tmp_path: Path) -> None:
    train(seeing(family))
    log = log_of(tmp_path / "run")
    assert len(log) == 2 and max(entry["sampling/logp_difference"] for entry in log) < 1e-5
    swapped = {"a.png": "c.png", "c.png": "a.png"}
    rows = [{**row, "images": [swapped.get(name, name) for name in row.get("images", [])]} for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train(seeing(family, training={"output": str(tmp_path / "swapped"), "max_steps": 1}))
    assert log_of(tmp_path / "swapped")[0]["entropy"] != log[0]["entropy"]  # pictures matter


def test_a_teacher_sees_what_the_model_sees(
    seeing: Callable[..., Config], seeing_models: Callable[[str], Path], tmp_path: Path
) -> None:
    """One that is the model itself thinks the same of every answer; one that sees otherwise is refused."""
    train(seeing("qwen2_5_vl", grpo={"teacher": str(seeing_models("qwen2_5_vl"))}, training={"max_steps": 1}))
    assert 0 <= log_of(tmp_path / "run")[0]["teacher_kl"] < 1e-9
    with pytest.raises(NpukitError, match="read images"):
        train(seeing("qwen2_5_vl", grpo={"teacher": str(seeing_models("llava"))}))


def test_reward_functions_are_given_no_contents_of_pictures() -> None:
    row = {"image": {"bytes": b"..."}, "problem": "How many?", "solution": "3"}
    laid = renamed(row, layout := Layout("alpaca", {"images": "image", "query": "problem"}))
    prompt = named("grpo").row(laid, layout)
    assert isinstance(prompt, PromptRow) and prompt.media == (MediaItem("image", {"bytes": b"..."}),)
    assert prompt.columns["solution"] == "3" and json.dumps(prompt.columns)


class Killed(BaseException):
    """Nothing catches it."""


def test_a_killed_run_with_pictures_and_turns_goes_on(
    seeing: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two steps that learn from the same answers."""
    monkeypatch.setattr(finetune, "_end_tokens", lambda *_: frozenset(range(0, 400, 3)))  # or few answers would end
    (tmp_path / "turns.py").write_text(SCHEDULER)
    training = {"max_steps": 2, "save_every": 1, "learning_rate": 1e-3, "async_save": False}
    grpo = {"num_iterations": 2, "multi_turn_scheduler": "again", "max_completion_length": 64}
    config = seeing("qwen2_5_vl", (str(tmp_path / "turns.py"),), grpo=grpo, training=training)
    run, whole = tmp_path / "run", tmp_path / "whole"
    train(config)
    first = log_of(run)[0]
    assert first["turns/max"] == 2 and first["sampling/logp_difference"] < 1e-5
    run.rename(whole)
    hash_files, calls = cast(Any, checkpoint).hash_files, itertools.count(1)

    def killing(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise Killed
        return hash_files(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "hash_files", killing)
        with pytest.raises(Killed):
            train(config)
    train(config)
    weights, again = (load_file(folder / "model.safetensors") for folder in (whole, run))
    assert all(weights[name].equal(again[name]) for name in weights)
