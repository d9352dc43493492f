"""analyze and migrate choose rules and count what is left alike; every rule carries its policy."""

from __future__ import annotations

import os
import re
import runpy
import socket
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner

from npukit.cli import app
from npukit.errors import NpukitError
from npukit.facts.target import Target
from npukit.migrate.analysis import analyze
from npukit.migrate.goal import Goal, Style
from npukit.migrate.journal import write_copy
from npukit.migrate.migration import migrate
from npukit.migrate.pages import rule_page
from npukit.migrate.rule import Rule
from npukit.migrate.rules import all_rules, rule_of
from npukit.migrate.selection import Selection
from npukit.report import Finding

CODE = """import torch
import flash_attn
torch.cuda.nvtx.mark("x")
x = torch.zeros(3).cuda()
model = torch.nn.DataParallel(model)
"""


def project(folder: Path, options: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_text(CODE)
    (folder / "requirements.txt").write_text("torch==2.1.0+cu118\nflash-attn\n")
    (folder / "Dockerfile").write_text("FROM nvidia/cuda:12.1.0-devel\n")
    (folder / "pyproject.toml").write_text(f"[tool.npukit]\n{options}\n")
    return folder


def places(findings: list[Finding]) -> set[tuple[str, str, int]]:
    return {(finding.code, finding.place.file.name, finding.place.line) for finding in findings if finding.place}


@pytest.mark.parametrize(
    ("options", "select", "ignore"),
    [
        ("", [], []),
        ('ignore = ["NPK4"]', [], []),
        ('ignore = ["NPK4"]', ["NPK403", "NPK110"], []),  # the command line wins
        ('select = ["NPK2", "NPK110"]', [], ["NPK208"]),
    ],
)
def test_analyze_and_migrate_agree_on_what_is_left(
    tmp_path: Path, options: str, select: list[str], ignore: list[str]
) -> None:
    folder = project(tmp_path / "project", options)
    analysis = analyze([folder], select=select, ignore=ignore)
    migration = migrate(folder, select=select, ignore=ignore)
    write_copy(migration, folder, tmp_path / "migrated")
    result = analyze([tmp_path / "migrated"], select=select, ignore=ignore)
    assert places(migration.by_hand) == places(result.by_hand)
    assert len(migration.by_hand) == len(result.by_hand) == len(analysis.by_hand) > 0


_BAD = re.compile(r"^bad(?: \(([^=)]*)\))?:\n((?:    .*\n|\n)+)", re.MULTILINE)


@pytest.mark.parametrize("style", list(Style))
def test_migrate_lists_what_analyze_finds_in_the_result(tmp_path: Path, style: Style) -> None:
    """Over the single lines of cases.py and the bad examples of all rules, with the lines of the migrated files."""
    folder = tmp_path / "project"
    table = runpy.run_path(str(Path(__file__).with_name("cases.py")))
    texts = {f"cases/{number}.py": f"{table['HEAD']}{case[0]}\n" for number, case in enumerate(table["CASES"])}
    for rule in all_rules():
        for number, (name, code) in enumerate(_BAD.findall(rule.doc + "\n")):
            texts[f"{rule.code}/{number}/{name or 'train.py'}"] = textwrap.dedent(code)
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    migration = migrate(folder, Goal(style))
    write_copy(migration, folder, tmp_path / "migrated")
    result = places(analyze([tmp_path / "migrated"]).by_hand)
    if style is Style.portable:  # in which analyze judges
        assert result == places(migration.by_hand)
        assert len(analyze([folder]).by_hand) == len(migration.by_hand) >= 50
    else:  # it changes more, and what is torch.npu's already tells nothing of torch.cuda any more
        assert result < places(migration.by_hand)


def test_the_command_line_wins_over_the_project(tmp_path: Path) -> None:
    folder = project(tmp_path, 'ignore = ["NPK403"]')
    assert {finding.code for finding in analyze([folder], select=["NPK403"]).findings} == {"NPK403"}
    assert not analyze([folder], select=["NPK403"], ignore=["NPK403"]).findings
    with pytest.raises(NpukitError, match="analyze"):
        migrate(folder, select=["NPK6"])


def test_a_line_gets_one_remedy(tmp_path: Path) -> None:
    """NPK201 says more than NPK101 about a name without counterpart, NPK404 more than others about torch."""
    findings = analyze([project(tmp_path)]).findings
    lines = [
        (finding.place.file.name, finding.place.line)
        for finding in findings
        if finding.place and finding.severity != "note"
    ]
    assert len(lines) == len(set(lines)), findings


def test_a_rule_holds_from_its_version_on() -> None:
    rule = rule_of("NPK209")
    assert rule is not None and rule.since
    old = Target("1.11.0", "1.11.0", "", "910B3")
    assert rule in Selection().rules(target=Target.of()) and rule not in Selection().rules(target=old)


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_every_rule_carries_its_policy(rule: Rule) -> None:
    assert rule.why.endswith(".") and rule.remedy.endswith(".")
    assert all(rule_of(code) for code in rule.supersedes)
    page = rule_page(rule.code.lower())
    assert page and rule.why in page and rule.remedy in page


def test_there_is_no_page_of_an_unknown_rule() -> None:
    assert rule_page("NPK999") is None


def test_explain_prints_the_page_of_a_rule() -> None:
    result = CliRunner().invoke(app, ["explain", "npk110"])
    assert (result.exit_code, result.output) == (0, rule_page("NPK110"))


def test_pipes_and_sockets_are_passed_over(tmp_path: Path) -> None:
    folder = project(tmp_path)
    os.mkfifo(folder / "pipe.py")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.py"))
        assert {finding.place.file.name for finding in analyze([folder]).findings if finding.place} == {
            "a.py",
            "requirements.txt",
            "Dockerfile",
        }
    with pytest.raises(NpukitError):
        migrate(folder / "pipe.py")


def test_a_project_that_is_a_library(tmp_path: Path) -> None:
    """Megatron-LM imports its own megatron everywhere; other projects need an adapter for it."""
    user, library = tmp_path / "user", tmp_path / "library"
    for folder in (user, library / "megatron"):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text("import megatron.core\n")
    assert [finding.code for finding in analyze([user]).by_hand] == ["NPK402"]
    assert not analyze([library]).by_hand
