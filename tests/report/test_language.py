"""What people read is there in both languages, and what programs read stays English."""

# ruff: noqa: RUF001 (it is Chinese)
from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from npukit.cli import app
from npukit.cli.help import panel, parted
from npukit.cli.verbs import VERBS, load
from npukit.report.language import FOLDER, chinese, language
from npukit.report.wrapping import columns, wrap

HAN = re.compile("[\u4e00-\u9fff]")
IN_HELP = {  # of help itself, which no verb declares
    "Usage: ", "Arguments", "Examples", "Commands", "default: {0}", "required", "variable: {0}", "on",
    "Guide: npukit docs {0}", "Show this message and exit.",
}  # fmt: skip


def rows(name: str) -> dict[str, str]:
    return {row["en"]: row["zh"] for row in yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))}


def texts_of(command: Any) -> Iterator[str]:
    text, examples = parted(command.help or "")
    yield from re.split(r"\n\s*\n", text.strip())
    yield from (comment for _, comment in examples if comment)
    for param in command.params:
        if not getattr(param, "hidden", False):
            yield from (each for each in (param.help, param.show_default) if isinstance(each, str) and each)
            yield from [panel(param)] if param.param_type_name == "option" else []


def help_texts() -> set[str]:
    found = {*VERBS, *texts_of(typer.main.get_command(app))}
    for verb in (verb for group in VERBS.values() for verb in group):
        command = load(verb)
        for each in (command, *getattr(command, "commands", {}).values()):
            found |= {" ".join(text.split()) for text in texts_of(each)}
    return found


def test_all_help_is_there_in_chinese_and_no_more() -> None:
    texts = help_texts()
    assert [text for text in texts if chinese(text) is None] == []
    assert set(rows("help.yaml")) - texts - IN_HELP == set(), "what no verb says any more"


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.yaml")), ids=lambda file: file.stem)
def test_a_row_is_chinese_with_the_same_gaps_and_code(file: Path) -> None:
    for english, text in rows(file.name).items():
        assert HAN.search(text) or " " not in english, english
        assert sorted(set(re.findall(r"\{\d\}", english))) == sorted(set(re.findall(r"\{\d\}", text))), english
        for code in re.findall(r"`[^`]+`", english):
            assert code in text, f"{english}: {code} is code, and the same in every language"


def test_the_language_is_the_users(monkeypatch: pytest.MonkeyPatch, npukit: Any) -> None:
    for variables, expected in (({}, "en"), ({"LANG": "zh_CN.UTF-8"}, "zh"), ({"LANG": "zh_CN", "LC_ALL": "C"}, "en")):
        with monkeypatch.context() as patch:
            for name in ("NPUKIT_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
                patch.delenv(name, raising=False)
            for name, value in variables.items():
                patch.setenv(name, value)
            assert language() == expected
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    shown = npukit("tune", "--help").stdout
    assert "找出在本机训练最快的设置" in shown and "Find the settings" not in shown
    assert json.loads(npukit("devices", "--json").stdout)["result"]["kind"] in ("npu", "gpu", "cpu")


def test_chinese_is_wrapped_by_columns() -> None:
    lines = wrap("这是一段比较长的中文说明，用来检查在模拟NPU上运行 npukit 时终端的换行。", 20, "  ", "    ")
    assert all(columns(line) <= 20 for line in lines) and "".join(line.strip() for line in lines).startswith("这是")
    assert not any(line.strip()[0] in "，。" for line in lines)
