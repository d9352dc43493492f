"""Every benchmark is in the table, can be found by the runner and takes the arguments that the table gives it."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal, TypeGuard, get_type_hints

import pytest
from benchmarks.__main__ import FOLDERS, README, Benchmark, benchmarks, call, main, table

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
    commands = {name.id for node in tree.body if _sets_commands(node) for name in ast.walk(node) if _is_read(name)}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in {"main", *commands}]
    parameters = [argument.arg for node in functions for argument in (*node.args.args, *node.args.kwonlyargs)]
    known = {f"--{name.replace('_', '-')}" for name in parameters}
    known |= set(re.findall(r'add_argument\(\s*"(--[\w-]+)"', row.script.read_text(encoding="utf-8")))
    given = {word for word in shlex.split(f"{row.quick} {row.arguments}") if word.startswith("--")}
    assert given <= known
    assert f"python -m benchmarks {row.name}" in (ast.get_docstring(tree) or "")


def _sets_commands(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMMANDS"


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def test_the_parameters_of_a_benchmark_are_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    def benchmark(
        folder: Path,
        names: Annotated[tuple[str, ...], ("a", "b")] = (),
        steps: Annotated[int, "of a run"] = 3,
        slow: bool = False,
        *,
        tool: Literal["one", "two"],
    ) -> tuple[object, ...]:
        return folder, names, steps, slow, tool

    benchmark.__annotations__ = get_type_hints(benchmark, include_extras=True)
    result = call(benchmark, "", ["here", "--names", "a", "b", "--tool", "two", "--slow"])
    assert result == (Path("here"), ("a", "b"), 3, True, "two")
    for wrong in (["here"], ["here", "--tool", "three"], ["here", "--tool", "one", "--names", "c"]):
        with pytest.raises(SystemExit):
            call(benchmark, "", wrong)
    with pytest.raises(SystemExit):
        call(benchmark, "What it is.", ["--help"])
    assert "What it is." in (shown := capsys.readouterr().out) and "of a run" in shown


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "none"])
    assert main() == 2
    assert "list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shown"),
    [("two_users", "Run as root"), ("explain_corpus", "explain_corpus"), ("peers", "tokens, rows, heads"),
     ("migrate_configs", "migrate_configs")],
)  # fmt: skip
def test_help_starts_nothing(
    name: str, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not a shell script, not a function without parameters, and not where a package is missing."""
    monkeypatch.setitem(sys.modules, "mmengine", None)
    monkeypatch.delitem(sys.modules, "benchmarks.corpora.migrate_configs", raising=False)
    monkeypatch.setattr("sys.argv", ["benchmarks", name, "--help"])
    assert main() == 0 and shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "script", "package"),
    [
        ("migrate_configs configs", "corpora.migrate_configs", "mmengine"),
        ("grpo --steps 1", "agreement.grpo", "trl"),  # imported when it is started
    ],
)
def test_a_missing_package_is_named(
    command: str, script: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"benchmarks.{script}", raising=False)
    monkeypatch.setattr("sys.argv", ["benchmarks", *command.split()])
    assert main() == 2 and package in capsys.readouterr().err


def test_without_a_gpu_its_need_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object) -> int:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(Benchmark, "_run_module", fail)
    monkeypatch.setattr("benchmarks.__main__.has_gpu", lambda: False)
    assert ROWS["plan"].run([]) == 2 and ROWS["plan"].needs in capsys.readouterr().err
    with pytest.raises(AssertionError):
        ROWS["startup"].run([])
