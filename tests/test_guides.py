"""Every command on a guide is run, and prints what the guide shows, unless the guide says why it is not run.

A guide shows commands in ```console blocks: `$ ` before each command, and below it what it prints. `…` stands for
anything, and line breaks are not compared. A page is one session: folder and variables stay. Comments say the rest:

    <!-- before: cp -r $ROOT/examples . -->   run before the next block, and not shown
    <!-- slow -->                             the next block is run by `python -m benchmarks our_guides` only; there,
                                              a figure stands for any figure
    <!-- until stopped -->                    as slow, for a server: it is interrupted once it has printed what is shown
    <!-- not run: needs a card -->            the next block is not run
    <!-- exit code 2 -->                      how the last command of the block above ends
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from .conftest import Npukit
from .forks import Copy

ROOT = Path(__file__).parents[1]
GUIDES = sorted(
    page
    for page in [ROOT / "README.md", *ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/concepts/*.md")]
    if not page.name.endswith(".zh.md")
)
PART = re.compile(
    r"^<!-- before: (?P<before>.*?) -->$|^<!-- not run: (?P<why>.*?) -->$|^<!-- (?P<kind>slow|until stopped) -->$"
    r"|^```console\n(?P<block>.*?)^```$(?:\n<!-- exit code (?P<code>\d+) -->)?",
    re.DOTALL | re.MULTILINE,
)
NEVER = {  # commands that are shown beside others and not run with them
    r"(python -m )?pip install ": "installs packages",
    r"git clone ": "clones a repository",
    r"make ": "runs the demo and all tests",
}
ALL = os.environ.get("NPUKIT_ALL_GUIDES") == "1"  # run the slow blocks as well
PROGRESS = re.compile(r"^npukit: [^\n]*: (\d+%|\d+ of \d+ rows)[^\n]*\n", re.MULTILINE)  # on a busy machine
FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[-+]\d+)?")
NO_SHELL = re.compile(r"(npukit|python examples/\S+\.py|ls) [^|&;<>$]*$")


@dataclass(frozen=True)
class Block:
    """Commands that are run in one shell, each with what it should print, and how the last one should end."""

    commands: list[tuple[str, str]]
    code: int = 0
    not_run: str = ""
    kind: str = ""  # "", "slow" or "until stopped"
    is_shown: bool = True

    @property
    def is_run(self) -> bool:
        return not self.not_run and (ALL or not self.kind)


def blocks(page: Path) -> Iterator[Block]:
    """The commands of a guide in order."""
    before: list[tuple[str, str]] = []
    why = kind = ""
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        if part["before"]:
            before.append((part["before"], "…"))
        elif part["why"] or part["kind"]:
            why, kind = part["why"] or "", part["kind"] or ""
        else:
            if before:
                yield Block(before, not_run=why, kind="slow" if kind else "", is_shown=False)
            matches = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", part["block"], re.MULTILINE)
            commands = [(command, shown if shown.strip() else "…") for command, shown in matches]
            yield Block(commands, int(part["code"] or 0), why, kind)
            before, why, kind = [], "", ""


def never(command: str) -> str:
    """Why a command is not run wherever it is shown; empty if it is."""
    return next((why for pattern, why in NEVER.items() if re.match(pattern, command)), "")


def matches(shown: str, printed: str, any_figures: bool = False) -> bool:
    """Whether the text is what was printed, where … stands for anything.

    >>> matches("a … d", "a b c d")
    True
    """
    printed = PROGRESS.sub("", printed)
    if any_figures:
        shown, printed = FIGURE.sub("0", shown), FIGURE.sub("0", printed)
    pieces = [re.escape(" ".join(piece.split())) for piece in shown.split("…")]
    return re.fullmatch(r"\s*" + ".*?".join(pieces) + r"\s*", " ".join(printed.split()), re.DOTALL) is not None


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and the rows of examples/finetune, made once."""
    folder = tmp_path_factory.mktemp("demo")
    run_script(ROOT / "examples" / "finetune" / "make.py", str(folder))
    return folder


@pytest.mark.parametrize("page", [page for page in GUIDES if any(block.is_run for block in blocks(page))], ids=str)
def test_commands_print_what_the_guide_shows(
    page: Path, tmp_path: Path, npukit: Npukit, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with mock.patch.dict(os.environ, ROOT=str(ROOT), DEMO=str(demo), PATH=path):
        for block in filter(lambda block: block.is_run, blocks(page)):
            commands = [(command, shown) for command, shown in block.commands if not never(command)]
            if block.kind == "until stopped":
                results = [until_stopped(command, shown) for command, shown in commands]
            elif not block.kind and all(NO_SHELL.match(command) for command, _ in commands):
                results = [in_this_process(command, npukit) for command, _ in commands]
            else:
                results = in_a_shell([command for command, _ in commands])
            codes = [0] * (len(commands) - 1) + [block.code]
            for (command, shown), (code, printed), wanted in zip(commands, results, codes, strict=True):
                assert code == wanted, f"{command}\n{printed}"
                assert matches(shown, printed, any_figures=bool(block.kind)), f"{command}\n{printed}"


def in_this_process(command: str, npukit: Npukit) -> tuple[int, str]:
    """The same for a command that needs no shell: this process has most likely imported transformers already."""
    program, *words = shlex.split(command)
    if program == "npukit":
        with mock.patch("subprocess.Popen", Copy):
            ended = npukit(*words)
        return ended.returncode, ended.stderr + ended.stdout
    if program == "python":
        run_script(Path(words[0]), *words[1:])
        return 0, ""
    return in_a_shell([command])[0]


def run_script(script: Path, *arguments: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [script.name, *arguments])
        runpy.run_path(str(script), run_name="__main__")


def in_a_shell(commands: list[str]) -> list[tuple[int, str]]:
    """The exit code and the output of each command; folder and variables are those of the page from then on."""
    mark = "-- end of a command --"
    script = "\n".join(f"{command}\necho '{mark}' $?" for command in commands) + "\npwd\nenv -0"
    shell = ["bash", "-c", f"exec 2>&1\n{script}"]
    printed = subprocess.run(shell, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    *output, state = re.split(rf"{mark} (\d+)\n", printed)
    folder, _, variables = state.partition("\n")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(row.split("=", 1) for row in variables.split("\0") if "=" in row)
    return [(int(code), text) for text, code in zip(output[::2], output[1::2], strict=True)]


def until_stopped(command: str, shown: str) -> tuple[int, str]:
    """What a server says, which is interrupted once it has said all that is shown."""
    process = ["bash", "-c", f"exec env {command} 2>&1"]
    with subprocess.Popen(process, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        printed = ""
        lines = shown.count("\n") or 2
        while printed.count("\n") < lines and (line := server.stdout.readline()):
            printed += line
        server.send_signal(signal.SIGINT)
        server.stdout.read()
        return server.wait(), printed


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_stand_in_console_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert not [code for kind, code in fences if kind != "console" and re.search(r"^(\$|npukit) ", code, re.MULTILINE)]


def counts() -> dict[str, list[str]]:
    """Every command that is shown, by who runs it or why nobody does."""
    by_page: dict[str, list[str]] = {}
    for page in GUIDES:
        for block in (block for block in blocks(page) if block.is_shown):
            for command, _ in block.commands:
                why = block.not_run or never(command)
                run_by = "the benchmark our_guides" if block.kind else "the suite"
                by_page.setdefault(f"not run: {why}" if why else f"run by {run_by}", []).append(command)
    return by_page


if __name__ == "__main__":
    for why, commands in sorted(counts().items()):
        print(f"{len(commands):4}  {why}")
