"""LLaMA-Factory's and ms-swift's command lines for using a model become npukit's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from npukit.cli.verbs import VERBS, load


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "model"}))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("USE_MODELSCOPE_HUB", "0")
    return tmp_path


def parsed(verb: str, *args: str) -> dict[str, Any]:
    command = load(next(candidate for candidate in VERBS["Use"] if candidate.name == verb))
    params: dict[str, Any] = command.make_context(verb, list(args)).params
    # What may be given several times is a list in some versions of typer, and a tuple in others.
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def test_our_own_words_stay_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    words_ = parsed("serve", "model", "--port", "9", "--adapter", "a=run")
    assert (words_["model"], words_["port"], words_["adapter"]) == ("model", 9, ["a=run"])
    assert capsys.readouterr().err == ""


def test_swift_deploy(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--adapters run --load_data_args true --port 9 --max_batch_size 4 --device cpu"
    words_ = parsed("serve", *words.split())
    assert (words_["model"], words_["port"], words_["max_num_seqs"], words_["device"]) == ("run", 9, 4, "cpu")
    assert "npukit serve run" in capsys.readouterr().err, "the command in our own words is shown"


def test_several_adapters_are_served_by_name() -> None:
    words_ = parsed("serve", "--model", "model", "--adapters", "a=run", "b=run")
    assert (words_["model"], words_["adapter"]) == ("model", ["a=run", "b=run"])


def test_llama_factory_api_from_a_file(folder: Path) -> None:
    (folder / "x.yaml").write_text("model_name_or_path: model\nadapter_name_or_path: run\ntemplate: qwen3\n")
    words_ = parsed("serve", "x.yaml", "--port", "9")
    assert (words_["model"], words_["chat_template"], words_["port"]) == ("run", "qwen3", 9)


def test_swift_export() -> None:
    words_ = parsed("export", "--adapters", "run", "--merge_lora", "true", "--max_shard_size", "1GB")
    assert (words_["model"], words_["output"], words_["shard_size"]) == ("run", Path("run-merged"), "1GB")


def test_llama_factory_export(folder: Path) -> None:
    (folder / "other").mkdir()
    (folder / "x.yaml").write_text("model_name_or_path: other\nadapter_name_or_path: run\nexport_dir: out\n")
    words_ = parsed("export", "x.yaml")
    assert (words_["model"], words_["adapter"], words_["output"]) == ("other", ["run"], Path("out"))


def test_their_names_of_the_verbs_and_their_mistakes() -> None:
    command = [sys.executable, "-m", "npukit", "deploy", "--model", "model", "--adaptors", "run"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--adaptors: did you mean adapters?" in ended.stderr and "Traceback" not in ended.stderr


def test_infer_and_chat(folder: Path) -> None:
    (folder / "rows.jsonl").write_text('{"query": "Hi"}')
    words = "--adapters run --val_dataset rows.jsonl --result_path out.jsonl --max_new_tokens 5 --temperature 0"
    words_ = parsed("infer", *words.split())
    assert (words_["model"], words_["data"], words_["output"]) == ("run", ["rows.jsonl"], Path("out.jsonl"))
    assert (words_["max_new_tokens"], words_["temperature"]) == (5, 0)
    words_ = parsed("chat", "--model_name_or_path", "model", "--template", "qwen3", "--do_sample", "false")
    assert (words_["model"], words_["chat_template"], words_["temperature"]) == ("model", "qwen3", 0)


def test_the_rows_of_the_run(folder: Path) -> None:
    (folder / "run" / "args.json").write_text(json.dumps({"model": "model", "template": "qwen3"}))
    (folder / "run" / "val_dataset.jsonl").write_text('{"query": "Hi"}')
    words_ = parsed("infer", "--adapters", "run", "--load_data_args", "true")
    assert (words_["data"], words_["chat_template"]) == (["run/val_dataset.jsonl"], "qwen3")
