"""Evaluation by answers that the model generates while it is trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.rl.conftest import log_of

from npukit.inference.metrics import measure
from npukit.llm.config.options import ANSWER_METRICS, Config
from npukit.rl.rank import train

STEPS = 45


@pytest.fixture
def rows(tmp_path: Path) -> list[list[dict[str, str]]]:
    """Conversations of one turn or two, whose last answer is one that can be learnt by heart."""
    talks = []
    for number in range(8):
        first = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}] if number % 2 else []
        last = [{"role": "user", "content": "a" * (number + 1)}, {"role": "assistant", "content": "The sky is blue."}]
        talks.append([*first, *last])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    return talks


def configured(tmp_path: Path, model: Path, **more: dict[str, Any]) -> Config:
    data = {"train": [str(tmp_path / "rows.jsonl")], "validation": [{"path": str(tmp_path / "rows.jsonl")}]}
    training = {"batch_size": 8, "max_steps": STEPS, "eval_every": STEPS - 5, "learning_rate": 1e-2, "warmup": 0}
    training |= {"best_metric": "eval_rouge_l", "best_is_highest": True, "load_best": True, "save_every": 20}
    return Config.model_validate(
        {
            "model": {"path": str(model)},
            "tuning": {"method": "full"},
            "data": data | {"cutoff": 512, "cache": False, "preprocessing_workers": 1, **more.get("data", {})},
            "evaluation": {"predict_with_generate": True, "max_new_tokens": 12},
            "training": training
            | {"output": str(tmp_path / "run"), "precision": "fp32", "plot": False, "workers": 0}
            | more.get("training", {}),
        }
    )


def evaluations(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [entry for entry in map(json.loads, lines) if "eval_rouge_l" in entry]


@pytest.mark.parametrize("packing", [True, False])
def test_answers_are_those_of_generate(
    tiny_qwen2: Path, tiny_tokenizer: Any, rows: list[list[dict[str, str]]], tmp_path: Path, packing: bool
) -> None:
    from transformers import AutoModelForCausalLM

    early = {"max_steps": 6, "eval_every": 6, "load_best": False, "save_every": None}
    train(configured(tmp_path, tiny_qwen2, data={"packing": packing, "last_answer_only": packing}, training=early))
    lines = (tmp_path / "run" / "predictions" / "step-6.jsonl").read_text().splitlines()
    written = {line["row"]: line for line in map(json.loads, lines)}
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run", dtype=torch.float32).eval()
    for number, talk in enumerate(rows):
        ids = tiny_tokenizer.apply_chat_template(talk[:-1], add_generation_prompt=True, return_dict=False)
        made = model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
        assert written[number]["answer"] == tiny_tokenizer.decode(made, skip_special_tokens=True)
        assert written[number]["reference"] == "The sky is blue."
    expected = measure([(line["answer"], line["reference"]) for line in written.values()])
    (evaluation,) = evaluations(tmp_path / "run")
    for name in ANSWER_METRICS:
        assert evaluation[f"eval_{name}"] == pytest.approx(getattr(expected, name), abs=1e-4)
    assert "eval_loss" not in evaluation


def test_the_best_checkpoint_is_that_with_the_best_answers(
    tiny_qwen2: Path, rows: list[list[dict[str, str]]], tmp_path: Path
) -> None:
    summary = train(configured(tmp_path, tiny_qwen2))
    assert [entry["eval_accuracy"] for entry in evaluations(tmp_path / "run")] == [100.0, 100.0]
    assert summary.best is not None and summary.best.startswith("eval_rouge_l 100.0")
    assert log_of(tmp_path / "run")[-1]["loss"] < 0.1


def test_pictures_are_answered(
    seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path, rows: list[list[dict[str, str]]]
) -> None:
    talks = [{"messages": [{**talk[0], "content": "<image>What?"}, talk[-1]], "images": ["a.png"]} for talk in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(talk) + "\n" for talk in talks))
    early = {"max_steps": 2, "eval_every": 2, "load_best": False, "save_every": None, "batch_size": 2}
    model = seeing_models("qwen2_5_vl")
    train(configured(tmp_path, model, data={"media_dir": str(pictures)}, training=early))
    assert len((tmp_path / "run" / "predictions" / "step-2.jsonl").read_text().splitlines()) == len(rows)
