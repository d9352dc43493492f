"""The model card that a run leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from npukit.llm.config.options import Config
from npukit.llm.finetune.card import card
from npukit.train import TrainOptions
from npukit.train.watch import Watch


def test_a_card_says_what_was_trained_on_what_and_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base").mkdir()
    Path("base/README.md").write_text("---\nlicense: apache-2.0\n---\n# Base\n")
    Path("rows.jsonl").touch()
    config = Config.model_validate({"model": {"path": "base"}, "data": {"train": "rows.jsonl"}})
    summary = Watch(TrainOptions(output="run"), False, 1, 3).finish("finished")
    text = card(config, summary, Path("run"))
    fields = yaml.safe_load(text.split("---")[1])
    assert (fields["library_name"], fields["license"]) == ("peft", "apache-2.0")
    assert "base_model" not in fields, "a folder is no name on a hub"
    assert str(tmp_path / "base") in text and str(tmp_path / "rows.jsonl") in text, "found from anywhere"
    assert "npukit chat run" in text and "PeftModel.from_pretrained" in text and "rank 8" in text
    hub = config.model_copy(update={"model": config.model.model_copy(update={"path": "Qwen/Qwen2-0.5B"})})
    assert yaml.safe_load(card(hub, summary, Path("run")).split("---")[1])["base_model"] == "Qwen/Qwen2-0.5B"
