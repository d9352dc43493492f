"""Every command on a guide is run, and prints what the guide shows, unless the guide says why it is not run.

A guide shows commands in ```console blocks: `$ ` before each command, and below it what it prints. `…` stands for
anything, and line breaks are not compared. Comments around a block say the rest:

    <!-- before: cp -r $ROOT/examples . -->   run first, in the same folder, and not shown
    <!-- not run: needs a card -->            the next block is not run
    <!-- exit code 2 -->                      how the last command of the block above ends
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .conftest import Npukit

ROOT = Path(__file__).parents[1]
GUIDES = sorted(
    page
    for page in [ROOT / "README.md", *ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/concepts/*.md")]
    if not page.name.endswith(".zh.md")
)
PART = re.compile(
    r"^<!-- before: (?P<before>.*?) -->$|^<!-- not run: (?P<why>.*?) -->$"
    r"|^```console\n(?P<block>.*?)^```$(?:\n<!-- exit code (?P<code>\d+) -->)?",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """Commands that are run in one shell, each with what it should print, and how the last one should end."""

    commands: list[tuple[str, str]]
    code: int = 0
    not_run: str = ""


def blocks(page: Path) -> Iterator[Block]:
    """The commands of a guide in order."""
    why = ""
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        if part["before"]:
            yield Block([(part["before"], "…")], not_run="")
        elif part["why"]:
            why = part["why"]
        else:
            found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", part["block"], re.MULTILINE)
            commands = [(command, shown if shown.strip() else "…") for command, shown in found]
            yield Block(commands, int(part["code"] or 0), why)
            why = ""


def matches(shown: str, printed: str) -> bool:
    """Whether the text is what was printed, where … stands for anything.

    >>> matches("a … d", "a b c d")
    True
    """
    pieces = [re.escape(" ".join(piece.split())) for piece in shown.split("…")]
    return re.fullmatch(r"\s*" + ".*?".join(pieces) + r"\s*", " ".join(printed.split()), re.DOTALL) is not None


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model and the rows of examples/finetune, made once."""
    folder = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:  # in this process, which most likely has imported transformers already
        patch.setattr(sys, "argv", ["make.py", str(folder)])
        runpy.run_path(str(ROOT / "examples" / "finetune" / "make.py"), run_name="__main__")
    return folder


@pytest.mark.parametrize("page", [page for page in GUIDES if any(not each.not_run for each in blocks(page))], ids=str)
def test_commands_print_what_the_guide_shows(
    page: Path, tmp_path: Path, npukit: Npukit, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOT", str(ROOT))
    monkeypatch.setenv("DEMO", str(demo))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    for block in blocks(page):
        if block.not_run:
            continue
        if all(re.match(r"npukit [^|&;<>$]*$", command) for command, _ in block.commands):
            ended = [npukit(*shlex.split(command)[1:]) for command, _ in block.commands]
            results = [(each.returncode, each.stderr + each.stdout) for each in ended]
        else:
            results = in_a_shell([command for command, _ in block.commands])
        codes = [0] * (len(block.commands) - 1) + [block.code]
        for (command, shown), (code, printed), wanted in zip(block.commands, results, codes, strict=True):
            assert code == wanted, f"{command}\n{printed}"
            assert matches(shown, printed), f"{command}\n{printed}"


def in_a_shell(commands: list[str]) -> list[tuple[int, str]]:
    """The exit code and the output of each command; the folder in which they end stays the current one."""
    mark = "-- end of a command --"
    script = "\n".join(f"{command}\necho '{mark}' $?" for command in commands) + "\npwd"
    printed = subprocess.run(["bash", "-c", f"exec 2>&1\n{script}"], capture_output=True, text=True).stdout
    *said, folder = re.split(rf"{mark} (\d+)\n", printed)
    os.chdir(folder.strip())
    return [(int(code), text) for text, code in zip(said[::2], said[1::2], strict=True)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_stand_in_console_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert not [code for kind, code in fences if kind != "console" and re.search(r"^(\$|npukit) ", code, re.MULTILINE)]


if __name__ == "__main__":
    shown = [(block.not_run, command) for page in GUIDES for block in blocks(page) for command, _ in block.commands]
    print(f"{sum(not why for why, _ in shown)} commands are run, {sum(bool(why) for why, _ in shown)} are not:")
    for why in sorted({why for why, _ in shown} - {""}):
        print(f"{sum(why == each for each, _ in shown):4}  {why}")
