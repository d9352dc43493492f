"""Every benchmark is in the table, can be found by the runner and takes the arguments that the table gives it."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from benchmarks.__main__ import FOLDERS, README, Benchmark, benchmarks, main, table

ROOT = Path(__file__).parents[1]
ROWS = benchmarks()


def test_every_script_is_in_the_table_and_every_row_has_its_script() -> None:
    """A file directly in one of the folders is a benchmark; what several share is in folders below."""
    files = {file for folder in FOLDERS for file in (ROOT / "benchmarks" / folder).glob("*.*")}
    scripts = {file for file in files if file.suffix in (".py", ".sh")}
    assert scripts == {row.script for row in ROWS.values()}, "give it a row in benchmarks/claims.yaml"
    assert {file.name for file in (ROOT / "benchmarks").glob("*.py")} == {
        "__init__.py",
        "__main__.py",
        "contest.py",
        "tiny_server.py",
    }


def test_the_table_is_current() -> None:
    assert README.read_text(encoding="utf-8") == table(), "run python -m benchmarks table"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_row_is_whole(row: Benchmark) -> None:
    assert row.claim and row.duration and row.result and re.match(r"2\d{3}-\d\d(-\d\d)?, \w", row.measured)


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.script.suffix == ".py"], ids=lambda row: row.name)
def test_a_script_takes_the_options_of_its_row(row: Benchmark) -> None:
    """Read from its source, since many need a package or a card that is not here."""
    tree = ast.parse(row.script.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    strings = {
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }
    given = {word for word in shlex.split(f"{row.quick} {row.arguments}") if word.startswith("--")}
    assert given <= strings
    assert f"python -m benchmarks {row.name}" in (ast.get_docstring(tree) or "")


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "none"])
    assert main() == 2
    assert "list" in capsys.readouterr().err
