"""What people read is there in both languages, and what programs read stays English."""

# ruff: noqa: RUF001 (it is Chinese)
from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from npukit.cli import app
from npukit.cli.help import panel, parted
from npukit.cli.reference import pages
from npukit.cli.verbs import VERBS, load
from npukit.doctor.problems import problems
from npukit.errors import NpukitError
from npukit.facts import errors
from npukit.facts.cuda_apis import cuda_apis
from npukit.facts.libraries import libraries
from npukit.launch import script
from npukit.launch.failure import read_failure
from npukit.llm.config.explain import as_data
from npukit.llm.config.options import Config
from npukit.migrate.rules import all_rules
from npukit.performance.advise.rules import all_rules as advice_rules
from npukit.performance.plan.text import PARTS, ROLES
from npukit.report import language as language_module
from npukit.report.language import FOLDER, catalogue, chinese, language
from npukit.report.pages import prose
from npukit.report.wrapping import columns, wrap
from npukit.train.watch.progress import LineProgress
from npukit.train.watch.summary import Summary

HAN = re.compile("[\u4e00-\u9fff]")
SOURCES = Path(__file__).parents[2] / "src" / "npukit"
# Texts made of parts that are looked up by themselves, or of a rule's own words, which are not.
MADE_OF_PARTS = {"x xx", "x x", "x x on the CPU", "x x ms of each step", "x=x: x", "x x on x"}
# Lines whose parts are looked up one by one, or are figures.
SAID_IN_PARTS = {"x run", "x: x s", "step x/x  x  x", "step x  x", "x, in x (x filled)."}
# Errors that end in a hint, or in what others say: each hint makes another sentence.
ENDS_OPEN = {
    "--adapter x=x: x", "There is no file xx", "There is no x.",
    "This needs x, x not installed: x.",
    "rewards.functions: there is no reward function x: x", "the model has no linear module x: x",
    "report_to x is not supportedx", "x must be one of x, not xx",
    "there is no DeepSpeed file xx", "there is no checkpoint xx", "there is no folder xx", "x has no config.jsonx",
    "x has no effect because x", "x is a multimodal data set: x.", "x is a multimodal model: x.",
    "x was written x, or choose another output folder to start over.", "x x", "x x.", "x: x", "x: x.", "x: x (x at x).",
    "x xs were requested, but x x visible: x.", "x: there is no such file, folder or data setx",
    "The original project fails on x: fix it first. Its last lines:\nx",
    "training.sequence_parallel: x devicex cannot be divided into groups of x: train on a multiple of x devices.",
    "Some trainable parameters took no part in the loss of a stepx: freeze them (requires_grad_(False)) if they never "
    "do, or set find_unused_parameters: true, which costs a little time.",
}  # fmt: skip
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
            yield from (text for text in (param.help, param.show_default) if isinstance(text, str) and text)
            yield from [panel(param)] if param.param_type_name == "option" else []


def help_texts() -> set[str]:
    texts = {*VERBS, *texts_of(typer.main.get_command(app))}
    for verb in (verb for group in VERBS.values() for verb in group):
        command = load(verb)
        for verb in (command, *getattr(command, "commands", {}).values()):
            texts |= {" ".join(text.split()) for text in texts_of(verb)}
    return texts


def test_all_help_is_there_in_chinese_and_no_more() -> None:
    texts = help_texts()
    assert [text for text in texts if chinese(text) is None] == []
    assert set(rows("help.yaml")) - texts - IN_HELP == set(), "what no verb says any more"


def finding_texts() -> Iterator[str]:
    """What rules, checks and advice say that is not made at run time."""
    for rule in all_rules():
        yield from (rule.why, rule.remedy)
    for advised in advice_rules():
        yield from (advised.why, advised.remedy)
    for api in cuda_apis():
        yield from (api.why, api.remedy, api.otherwise)
    for library in libraries():
        yield from (text for text in (library.why, library.instead, library.needs) if " " in (text or ""))
    for problem in problems().values():
        yield from (problem.title, problem.why, problem.remedy)


@functools.cache
def calls_in(file: Path) -> list[ast.Call]:
    """All calls in a file, which is parsed once for all tests."""
    return [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]


def said_by(function: str, folder: Path, position: int) -> Iterator[str]:
    """The first text of every call of a function below a folder, with x for what is filled in."""
    for file in sorted(folder.rglob("*.py")):
        for call in calls_in(file):
            if _name(call) == function and len(call.args) > position:
                text = call.args[position]
                if isinstance(text, ast.JoinedStr):
                    yield "".join(map(_part, text.values))
                elif isinstance(text, ast.Constant):
                    yield str(text.value)


def _part(part: ast.expr) -> str:
    """A part of an f-string: its text, `x nouns` for what `counted` fills in, x for everything else."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    value = part.value if isinstance(part, ast.FormattedValue) else None
    if isinstance(value, ast.Call) and _name(value) == "counted":
        noun = value.args[1]
        word = str(noun.value) if isinstance(noun, ast.Constant) else "x"
        return f"x {word}s"
    return "x"


def _name(call: ast.Call) -> str:
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def test_all_errors_are_there_in_chinese() -> None:
    sentences = {
        *said_by("NpukitError", SOURCES, 0),
        *said_by("BadRow", SOURCES, 0),
        *said_by("ConfigProblem", SOURCES, 1),
    }
    sentences |= {*said_by("RefusedValue", SOURCES, 1)}
    assert {text for text in sentences if " " in text and chinese(text.strip()) is None} <= ENDS_OPEN


def test_all_that_commands_say_while_they_work_is_there_in_chinese() -> None:
    functions = ("say", "_say", "log", "_log", "progress", "step", "status", "lines")
    sentences = {text.strip() for function in functions for text in said_by(function, SOURCES, 0)}
    assert {text for text in sentences if re.search("[a-wyz]", text) and chinese(text) is None} <= SAID_IN_PARTS


def test_only_one_function_speaks_for_npukit_on_stderr() -> None:
    """`say` translates; a print of its own would not."""
    for file in sorted(SOURCES.rglob("*.py")):
        if file.name not in ("terminal.py", "quiet.py"):
            printed = [ast.unparse(call) for call in calls_in(file) if _name(call) == "print"]
            assert [text for text in printed if re.match(r"print\(f?['\"]npukit: .*sys\.stderr", text)] == [], file


def test_all_findings_are_there_in_chinese() -> None:
    known = catalogue()  # a template such as "Use {0}." would take any remedy
    assert [text for text in finding_texts() if text and " ".join(text.split()) not in known] == []
    made = {*said_by("finding", SOURCES / "migrate", 1), *said_by("advice", SOURCES / "performance" / "advise", 1)}
    assert {text for text in made if chinese(text) is None} <= MADE_OF_PARTS


def test_all_options_of_a_training_are_there_in_chinese_and_no_more(npukit: Any, monkeypatch: Any) -> None:
    options = as_data(Config)
    texts = {" ".join(text.split()) for option in options for text in (option["meaning"], option["type"])}
    assert {text for text in texts if chinese(text) is None and " | " not in text and "{" not in text} == set()
    meant = {english for english in rows("options.yaml") if "{0}" not in english}
    assert meant - texts == set(), "what no option says any more"
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    assert "预热步数" in npukit("train", "--explain", "warmup").stdout


def test_the_whole_reference_is_there_in_chinese() -> None:
    """Two English words one after the other are prose, except in names of commands and lists of values."""
    missing = set()
    for name, page in pages().items():
        for text in prose(page) if name.endswith(".zh.md") else ():
            words = re.sub(r"`[^`]*`|\([^)]*\)", "", text)
            if not HAN.search(text) and re.search(r"[A-Za-z]{2,} [a-z]{2,}", words):
                missing.add(text)
    assert {text for text in missing if not re.match(r"npukit |\{|.* \\\| ", text)} == set()


def test_all_explanations_are_there_in_chinese_as_a_whole() -> None:
    """Names, and code between backticks and brackets, are as they are in English."""
    known = [*errors.known_errors().values(), *(row.error for rows in errors._named().values() for row in rows)]
    texts = {text for error in known for text in (error.meaning, *error.causes, *error.remedies) if " " in text}
    assert [text for text in texts if chinese(text) is None] == []
    english = re.compile(r"[ \u4e00-\u9fff](the|an?|is|are|that|which) [a-z]")
    half = [
        text
        for text in texts
        if english.search(re.sub(r"`[^`]*`|\([^)]*\)|'[^']*'|\"[^\"]*\"", "", chinese(text) or ""))
    ]
    assert half == []


def test_a_template_takes_no_prose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        language_module, "catalogue", lambda: {"Use {0}.": "使用 {0}。", "{0} asks for {0}: {1}": "{0}：{1}"}
    )
    monkeypatch.setattr(language_module, "_templates", language_module._templates.__wrapped__)
    ask = chinese.__wrapped__
    assert ask("Use x.py.") == "使用 x.py。" and ask("Use the one that fits.") is None
    assert ask("a asks for a: this is what others say") == "a：this is what others say"
    assert ask("a asks for b: this is what others say") is None


def test_an_error_is_explained_in_chinese(npukit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    shown = npukit("explain", "NPU out of memory").stdout
    assert "卡的显存已用完" in shown and "What to do" not in shown
    envelope = json.loads(npukit("explain", "--json", "NPU out of memory").stdout)
    assert envelope["result"]["explanations"][0]["meaning"] == "the card has no memory left"


def test_a_finding_is_shown_in_chinese_and_is_english_for_programs(
    npukit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("import torch, flash_attn\ntorch.cuda.nvtx.mark('a')\nx = flash_attn.f()\n")
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    shown = npukit("analyze", "a.py", cwd=tmp_path).stdout
    assert "FlashAttention 不能在 NPU 上运行" in shown and "结论：需要手工修改：1 个文件中的 2 处" in shown
    assert not re.search(r"\b(why|do|Verdict|Use|installed)\b", shown)
    result = json.loads(npukit("analyze", "a.py", "--json", cwd=tmp_path).stdout)["result"]
    assert result["summary"].startswith("Verdict") and not HAN.search(json.dumps(result, ensure_ascii=False))
    assert "是否想写 --target" in npukit("analyze", "--targe").stderr


def test_a_plan_is_shown_in_chinese_line_by_line(npukit: Any, tmp_path: Path, monkeypatch: Any) -> None:
    assert [part for part in (*PARTS.values(), *ROLES.values()) if chinese(f"1.0 GiB  {part}") is None] == []
    (tmp_path / "a.yaml").write_text("model: {path: Qwen/Qwen2-7B-Instruct}\ndata: {train: a.jsonl}\n")
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    lines = npukit("plan", "a.yaml", "--devices", "8", cwd=tmp_path).stdout.splitlines()
    assert len(lines) > 10 and [line for line in lines if line and not HAN.search(line)] == []


def test_mistakes_are_told_in_chinese_each_with_its_place(npukit: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.yaml").write_text("tuning:\n  method: lroa\ntraining:\n  learning_rte: 1\n")
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    shown = npukit("train", "a.yaml", "tuning.rank=x", cwd=tmp_path).stderr
    assert "命令行：tuning.rank 必须是" in shown
    assert "a.yaml:2: tuning.method 必须是以下之一" in shown
    assert "a.yaml:4: 没有选项 training.learning_rte：是否想写 learning_rate？" in shown
    envelope = json.loads(npukit("train", "a.yaml", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert not HAN.search(envelope["error"]["message"])


def test_the_end_of_a_training_is_told_in_chinese(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"reason": "finished", "pauses": 2.0, "utilisation": 0.4, "world_size": 2, "item": "tokens"}
    known |= {"device": "Ascend 910B", "best": None, "best_checkpoint": None, "notes": (), "evaluation": {}}
    paths = {"output": "output", "checkpoint": "best"}  # folders, although the catalogue has these words
    summary = Summary(**dict.fromkeys((field.name for field in fields(Summary)), 1) | known | paths)
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    LineProgress(10, "tokens").end(summary)
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split()[0] for line in lines if not HAN.search(line)] == ["loss", "checkpoint"]
    assert "已完成" in lines[0] and lines[-2].split()[1] == "best" and lines[-1].split()[1].startswith("output")
    assert len({columns(re.match(r"\S+ +", line)[0]) for line in lines}) == 1, "values stand in one column"


def test_the_error_of_a_rank_is_told_in_chinese(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    error, file = NpukitError("There is no task x."), tmp_path / "error.json"
    monkeypatch.setenv("NPUKIT_LANG", "zh")
    assert script._tell_failure(error) == 2 and "没有任务 x。" in capsys.readouterr().err
    monkeypatch.setenv(script.ERROR_FILE, str(file))  # of several ranks the launcher tells it
    assert script._tell_failure(error) == 2 and "没有任务 x。" in read_failure(1, 0, 2, str(file), "").text


def test_causes_of_differences_are_there_in_chinese() -> None:
    causes = yaml.safe_load((SOURCES / "precision" / "causes.yaml").read_text(encoding="utf-8"))
    assert [text for cause in causes for text in (cause["text"], cause["remedy"]) if text not in catalogue()] == []


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
