"""How verbs show their results: as text, or with --json as one object on standard output and nothing else.

A verb ends with `show(result, text, json)`. A verb that becomes another process calls `expect` before.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from npukit.report.json import to_json
from npukit.report.result import FILE, envelope, error_data, handed_back


@dataclass
class _Answer:
    """What is printed when the running verb has ended."""

    command: str
    stdout: int = -1  # a copy of the real one, while everything printed goes to standard error
    result: Callable[[], Any] = lambda: None


_answer: _Answer | None = None


def show(result: Any, text: str | Callable[[], str], json: bool, exit_code: int = 0) -> None:
    """Show a result, and exit with its code."""
    if json:
        expect(lambda: result)
    else:
        shown = text if isinstance(text, str) else text()
        print(shown, end="" if shown.endswith("\n") else "\n")
    if exit_code:
        raise typer.Exit(exit_code)


def expect(result: Callable[[], Any]) -> None:
    """Set the function that returns the result when this verb, or the process that it becomes, has ended."""
    if _answer is not None:
        _answer.result = result


def answer(command: str, run: Callable[[], Any]) -> Any:
    """Run a verb with --json and print its result, however it ends. `main` prints errors."""
    global _answer
    from npukit.report.unfinished import temporary_folder

    _answer = _Answer(command)
    with temporary_folder("result") as folder, _variable(FILE, str(folder / "result.json")):
        try:
            with _stdout_is_stderr(_answer):
                run()
        except (typer.Exit, SystemExit) as ended:
            code = ended.exit_code if isinstance(ended, typer.Exit) else ended.code
            _print(_answer, code if isinstance(code, int) else int(code is not None), folder)
            raise
        _print(_answer, 0, folder)


def _print(answer: _Answer, exit_code: int, folder: Path) -> None:
    back = handed_back(folder / "result.json")
    expected = answer.result()
    if isinstance(expected, dict) and isinstance(back.get("result"), dict):
        expected = {**expected, **back["result"]}
    error = back.get("error")
    if error is None and exit_code and expected is None:
        error = error_data("failed", f"It ended with exit code {exit_code}; standard error says why.")
    result = expected if expected is not None else back.get("result")
    print(to_json(envelope(answer.command, result, exit_code, error)), flush=True)


def print_error(error: dict[str, Any], exit_code: int, arguments: list[str]) -> None:
    """Print an error as JSON if --json was given."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if _answer is None and "--json" not in options:
        return
    command = _answer.command if _answer else " ".join(["npukit", *[word for word in options if word[0] != "-"][:1]])
    print(to_json(envelope(command, None, exit_code, error)), flush=True)


def forget() -> None:
    """Reset the state of this module, for a process that runs several commands."""
    global _answer
    _answer = None
    os.environ.pop(FILE, None)


def release_stdout() -> None:
    """Restore standard output before another process takes over, which prints the whole answer itself."""
    if _answer is not None and _answer.stdout >= 0:
        os.dup2(_answer.stdout, 1)


@contextlib.contextmanager
def _stdout_is_stderr(answer: _Answer) -> Iterator[None]:
    """Send everything that scripts, libraries and child processes print to standard error."""
    sys.stdout.flush()
    answer.stdout = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(answer.stdout, 1)
        os.close(answer.stdout)
        answer.stdout = -1


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
