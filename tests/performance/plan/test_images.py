"""Plans of models that see: tokens of images by the headers of their files, and the memory of the tower."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.seeing import pictures, seeing_models, seeing_tokenizer  # noqa: F401 - fixtures

from npukit.llm.config.options import Config
from npukit.performance.plan.job import Plan, plan
from npukit.performance.plan.text import as_text


@pytest.fixture
def planned(seeing_models: Callable[[str], Path], pictures: Path, tmp_path: Path) -> Callable[..., Plan]:  # noqa: F811
    rows = tmp_path / "rows.jsonl"
    row = {"prompt": "<image>Who?", "completion": "A cat.", "images": ["a.png"]}
    rows.write_text(json.dumps(row) + "\n" + json.dumps({"prompt": "Who?", "completion": "Nobody."}) + "\n")

    def make(family: str, **given: Any) -> Plan:
        data = {"train": [str(rows)], "media_dir": pictures, "cutoff": 512}
        tuning = {"method": "full", **given.pop("tuning", {})}
        model = {"path": str(seeing_models(family))}
        return plan(
            Config.model_validate({"model": model, "data": data, "tuning": tuning, "training": given}), 1, "910B3"
        )

    return make


@pytest.mark.parametrize(("family", "tokens"), [("qwen2_5_vl", 6), ("llava", 9), ("llava_next", 37)])
def test_tokens_of_images_are_counted(family: str, tokens: int, planned: Callable[..., Plan]) -> None:
    planned_ = planned(family)
    assert planned_.image_tokens == tokens / 2  # one of two rows has one
    assert f"{planned_.image_tokens:.0f} tokens" in as_text(planned_)


def test_what_is_frozen_needs_no_gradients_and_keeps_nothing(planned: Callable[..., Plan]) -> None:
    frozen, trained = (
        planned("qwen2_5_vl", tuning={"freeze_vision_tower": same, "freeze_projector": same}) for same in (True, False)
    )
    assert frozen.memory and trained.memory and frozen.trained and trained.trained and frozen.time and trained.time
    assert trained.trained == trained.parameters and frozen.trained < trained.trained
    assert trained.memory.activations > frozen.memory.activations
    assert trained.time.step > frozen.time.step
    again = planned("qwen2_5_vl", tuning={"freeze_vision_tower": False}, activation_checkpointing=True)
    assert again.memory and again.memory.activations < trained.memory.activations
