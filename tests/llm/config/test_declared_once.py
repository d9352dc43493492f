"""An option is declared in one place; everything else follows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from npukit.llm.config.explain import as_data, json_schema
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.llm.finetune.rank import handed_over, taken_over
from npukit.llm.reading.read import read

# The declaration of one more option of training, and then nothing but what is there already.
ADDED = """
import json, os, sys
from pathlib import Path
from typing import Annotated
from pydantic import Field, PositiveInt
from npukit.train import options

class TrainOptions(options.TrainOptions):
    patience: Annotated[PositiveInt, options.Called(llama_factory="be_patient", swift="be_patient")] = Field(
        7, description="an option that was added"
    )

options.TrainOptions = TrainOptions
from npukit.llm.config.explain import as_data, as_text, json_schema
from npukit.llm.config.options import Config
from npukit.llm.reading.read import read
from npukit.llm.finetune.rank import handed_over, taken_over

ours, theirs = (Path(name) for name in sys.argv[1:])
def value(*words, file=None, verb="train"):
    return read(file, words, {}, verb, files=False).config.training.patience
given = ["model.path=m", "data.train=d"]
os.environ |= handed_over(read(None, [*given, "training.patience=2"], {}, files=False).config)
print(json.dumps({
    "default": value(*given),
    "command line": value(*given, "training.patience=2"),
    "YAML": value(file=ours),
    "explain": as_text(Config, "patience"),
    "form": as_data(Config, "patience")[0]["above"],
    "schema": json_schema(Config, "")["$defs"]["TrainOptions"]["properties"]["patience"]["exclusiveMinimum"],
    "LLaMA-Factory": value(file=theirs),
    "ms-swift": value("--model", "m", "--dataset", "d", "--be_patient", "4", verb="sft"),
    "child": taken_over().training.patience,
}))
"""


def test_an_option_that_is_added_is_everywhere(tmp_path: Path) -> None:
    (tmp_path / "ours.yaml").write_text("model: {path: m}\ndata: {train: d}\ntraining: {patience: 3}\n")
    (tmp_path / "theirs.yaml").write_text(
        "model_name_or_path: m\ndataset: d\nstage: sft\ntemplate: default\nbe_patient: 5\n"
    )
    command = [sys.executable, "-c", ADDED, str(tmp_path / "ours.yaml"), str(tmp_path / "theirs.yaml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    result = json.loads(done.stdout)
    assert "training.patience" in result.pop("explain")
    ours = {"default": 7, "command line": 2, "YAML": 3, "child": 2}
    assert result == {**ours, "form": 0, "schema": 0, "LLaMA-Factory": 5, "ms-swift": 4}


# One line more in the file that declares what serving takes.
ADDED_TO_USE = """
import json, os, sys, types
from pathlib import Path
import npukit.llm.config
name, line = "npukit.llm.config.use", "    allow_pickles: bool ="
file = Path(npukit.llm.config.__file__).with_name("use.py")
more = '    patience: Annotated[PositiveInt, Called(swift="be_patient")] = Field(7, description="an added option")'
text = file.read_text().replace(line, more + chr(10) + line)
module = sys.modules[name] = types.ModuleType(name)
exec(compile(text, str(file), "exec"), module.__dict__)

from npukit.cli import using
from npukit.cli.verbs import VERBS, load
from npukit.inference.start import UseJob, handed_over, taken_over
from npukit.llm.reading.read_use import read_use

def value(*words):
    return read_use("serve", words, {}).use.engine.patience
def flag(*words):
    found = []
    verb = using.with_options(lambda use: found.append(use.engine.patience), "chat")
    command = load(next(each for each in VERBS["Use"] if each.name == "chat"))
    own = command.make_context("chat", list(words)).params
    verb(**{key: each for key, each in own.items() if key not in ("device", "card")})
    return found[0]
commands = {verb.name: load(verb) for verb in VERBS["Use"]}
os.environ |= handed_over(UseJob("serve", read_use("serve", ["m", "--patience", "2"], {}).use))
print(json.dumps({
    "default": value("m"),
    "flag": flag("m", "--patience", "2"),
    "YAML": value("ours.yaml"),
    "help": [name for name, each in commands.items() if "--patience" in each.get_help(each.make_context(name, ["m"]))],
    "explain": using.explain("serve", "patience"),
    "ms-swift": value("--model", "m", "--be_patient", "4"),
    "child": taken_over().use.engine.patience,
}))
"""


def test_an_option_of_serving_that_is_added_is_everywhere(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "ours.yaml").write_text("model: {path: m}\nengine: {patience: 3}\n")
    done = subprocess.run([sys.executable, "-c", ADDED_TO_USE], capture_output=True, text=True, cwd=tmp_path)
    assert not done.returncode, done.stderr
    result = json.loads(done.stdout)
    assert "engine.patience" in result.pop("explain")
    assert result.pop("help") == ["chat", "infer", "serve", "eval"]
    assert result == {"default": 7, "flag": 2, "YAML": 3, "ms-swift": 4, "child": 2}


def test_every_option_is_data_for_a_form_and_stands_in_the_schema() -> None:
    schema, rows = json_schema(Config, "npukit train"), {row["key"]: row for row in as_data(Config)}
    assert rows.keys() == options(Config).keys()
    for key, row in rows.items():
        assert row["kind"] in ("choice", "boolean", "integer", "number", "text", "path", "list", "mapping")
        assert row["meaning"] and (row["kind"] != "choice" or row["choices"]), key
        assert any(row["name"] in definition["properties"] for definition in (schema, *schema["$defs"].values())), key
    assert rows["tuning.rank"]["above"] == 0 and rows["training.momentum"]["maximum"] == 1


def test_the_child_process_gets_every_option(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["model.path=m", "data.train=d", "tuning.targets=q_proj,v_proj", "training.loggers=wandb,swanlab"]
    config = read(None, words, {}, files=False).config
    for name, value in handed_over(config).items():
        monkeypatch.setenv(name, value)
    assert taken_over() == config
