"""--json in every verb: one object on standard output and nothing else, for results as for errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from npukit.report.result import SCHEMA_VERSION

from .test_conventions import COMMANDS

# Verbs that have no result: they end when the user does. A server has one with --dry-run.
WITHOUT = {"chat", "studio", "mcp"}
CONFIG = {"model": {"path": "Qwen/Qwen2-7B-Instruct"}, "data": {"train": "rows.jsonl"}}
PROJECT = "import torch\n\nmodel = torch.nn.Linear(2, 2).cuda()\n"
# A command line of a verb, and what is in its result.
USES = {
    "doctor": ("", {"good", "checks", "first"}),
    "analyze": ("project", {"verdict", "counts", "hours_by_hand", "findings"}),
    "migrate": ("project", {"counts", "changes", "left"}),
    "run": ("--device cpu noisy.py", {"command", "device", "seconds"}),
    "launch": ("--device cpu --devices 2 --dry-run noisy.py", {"command", "variables"}),
    "container": ("--device sim", {"text", "argv"}),
    "devices": ("", {"kind", "devices"}),
    "plan": ("train.yaml --devices 8", {"fits", "memory", "time"}),
    "init": ("new.yaml --model Qwen/Qwen2-7B-Instruct --data rows.jsonl --devices 1", {"file", "schema", "next"}),
    "train": ("train.yaml --dry-run --device cpu", {"memory", "steps"}),
    "rewards": ("format --data rows.jsonl", {"functions", "rewards", "means"}),
    "new": ("made", {"folder", "files", "next"}),
    "schema": ("", {"schema"}),
    "serve": ("model --dry-run", {"model", "engine", "serve"}),
    "explain": ("507018", {"known", "explanations"}),
    "sim info": ("", {"cards", "parts"}),
    "report": ("", {"versions", "environment", "doctor", "file"}),
    "docs": ("fine-tune", {"page", "title", "text"}),
    "skill": ("", {"files"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(PROJECT)
    (tmp_path / "noisy.py").write_text("print('noise')\n")
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(CONFIG))
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(row)}\n" * 3)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


def said(ended: Any) -> dict[str, Any]:
    """What a command printed, which must be JSON as a strict parser reads it."""
    envelope: dict[str, Any] = json.loads(ended.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert envelope["schema_version"] == SCHEMA_VERSION and envelope["exit_code"] == ended.returncode
    return envelope


def test_every_verb_with_a_result_prints_json() -> None:
    able = {name for name, command in COMMANDS.items() if any("--json" in param.opts for param in command.params)}
    assert set(COMMANDS) - able == WITHOUT


@pytest.mark.parametrize("name", USES)
def test_a_result_is_one_object_with_the_version_of_its_schema(npukit: Any, folder: Path, name: str) -> None:
    line, fields = USES[name]
    verb, *inner = name.split()
    envelope = said(npukit(verb, *inner, "--json", *line.split(), cwd=folder))
    assert envelope["command"] == f"npukit {name}" and fields <= set(envelope["result"]) and "error" not in envelope


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - WITHOUT))
def test_a_wrong_option_is_json_too(npukit: Any, name: str) -> None:
    ended = npukit(*name.split(), "--json", "--nonsense=1", "--nothing")
    envelope = said(ended)
    assert ended.returncode == 2 and envelope["result"] is None
    assert envelope["error"]["code"] in ("usage", "invalid_input") and envelope["error"]["message"] in ended.stderr


def test_an_error_says_its_kind_and_what_helps(npukit: Any, folder: Path) -> None:
    assert said(npukit("analyze", "nowhere", "--json"))["error"]["code"] == "invalid_input"
    assert said(npukit("analyse", ".", "--json"))["error"]["remedy"] == "npukit --help"
    (folder / "wrong.py").write_text("print('noise')\nraise ValueError('wrong')\n")
    failed = said(npukit("run", "--device", "cpu", "--json", "wrong.py", cwd=folder))
    assert (failed["exit_code"], failed["error"]["message"]) == (1, "ValueError: wrong")


def test_a_script_keeps_its_own_json_option(npukit: Any, folder: Path) -> None:
    (folder / "own.py").write_text("import sys\nprint(sys.argv[1:])\n")
    assert npukit("run", "--device", "cpu", "own.py", "--json", cwd=folder).stdout == "['--json']\n"


def test_verdicts_and_counts_are_fields(npukit: Any, folder: Path) -> None:
    envelope = said(npukit("analyze", "project", "--json", "--report", "a.json", "--check", cwd=folder))
    assert (envelope["exit_code"], envelope["result"]["verdict"]) == (1, "ready after migrate")
    assert envelope["result"]["counts"]["fixable"] == 1 and envelope["result"]["hours_by_hand"] == 0
    assert json.loads((folder / "a.json").read_text()) == envelope
