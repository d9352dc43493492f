"""`npukit init`: three answers, and a file that trains."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from npukit.errors import NpukitError
from npukit.llm.reading.initial import initial
from npukit.llm.reading.read import read


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"model_type": "qwen2"}))
    Path("model/tokenizer.json").write_text("{}")
    Path("model/model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    rows = [json.dumps({"instruction": f"question {number}", "output": "answer"}) for number in range(60)]
    Path("rows.jsonl").write_text("\n".join(rows))
    Path("a-folder-with-a-long-name").mkdir()
    Path("a-folder-with-a-long-name/and-rows.jsonl").write_text("\n".join(rows))
    Path("text.txt").write_text("some plain text\n")
    return tmp_path


@pytest.mark.parametrize(
    ("data", "task", "devices"),
    [("rows.jsonl", "sft", 1), ("a-folder-with-a-long-name/and-rows.jsonl", "sft", 2), ("text.txt", "pt", 8)],
)
def test_the_file_reads_as_what_was_chosen(files: Path, data: str, task: Any, devices: int) -> None:
    made = initial("model", data, devices)
    Path("train.yaml").write_text(made.text)
    assert read(Path("train.yaml"), [], {}).config == made.config
    assert made.config.task == task
    assert made.config.training.load_best == (task == "sft"), "few rows leave none to evaluate on"
    assert made.text.count("#") > 10


def test_what_is_not_there_is_told_as_train_tells_it(files: Path) -> None:
    with pytest.raises(NpukitError, match="did you mean model"):
        initial("./modle", "rows.jsonl")


def test_the_command_asks_in_a_terminal_and_not_elsewhere(files: Path) -> None:
    command = [sys.executable, "-m", "npukit", "init"]
    silent = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert silent.returncode == 2 and "--model" in silent.stderr
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.write(ours, b"model\nrows.jsonl\n2\n")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "--devices 2" in Path("train.yaml").read_text()
    again = subprocess.run([*command, "--model", "model"], capture_output=True, text=True)
    assert again.returncode == 2 and "--force" in again.stderr


def test_a_model_that_is_neither_here_nor_on_a_hub_is_refused(
    npukit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("npukit.llm.hub._answers", lambda address: False)
    (tmp_path / "rows.jsonl").write_text('{"instruction": "Hi", "output": "Hello"}\n')
    words = ("--data", tmp_path / "rows.jsonl", "--devices", "1")
    assert npukit("init", tmp_path / "a.yaml", "--model", "nope", *words).returncode == 2
    assert not (tmp_path / "a.yaml").exists()
    assert npukit("init", tmp_path / "a.yaml", "--model", "Qwen/Qwen2-0.5B", *words).returncode == 0  # a known model


def test_an_editor_finds_the_schema_and_checks_the_file_with_it(npukit: Any, tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 3)
    words = ["--model", "Qwen/Qwen2-0.5B", "--data", "rows.jsonl", "--devices", "1"]
    assert npukit("init", "a.yaml", *words, cwd=tmp_path).returncode == 0
    text = (tmp_path / "a.yaml").read_text()
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    schema = json.loads((tmp_path / named).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    check.validate(yaml.safe_load(text))
    for wrong in ({"training": {"epochs": "many"}}, {"trainign": {}}, {"tuning": {"rnak": 8}}):
        assert not check.is_valid({**yaml.safe_load(text), **wrong})
    assert npukit("init", "a.yaml", *words, "--force", cwd=tmp_path).returncode == 0
    (tmp_path / named).write_text('{"title": "mine"}')
    assert npukit("init", "b.yaml", *words, cwd=tmp_path).returncode == 2
    assert (tmp_path / named).read_text() == '{"title": "mine"}' and not (tmp_path / "b.yaml").exists()
