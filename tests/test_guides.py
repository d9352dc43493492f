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
class Step:
    """One command: what it should print, None where nothing is compared, and how it should end."""

    command: str
    shown: str | None = None
    code: int = 0
    not_run: str = ""


def steps(page: Path) -> Iterator[Step]:
    """The commands of a guide in order."""
    why = ""
    for part in PART.finditer(page.read_text(encoding="utf-8")):
        if part["before"]:
            yield Step(part["before"])
        elif part["why"]:
            why = part["why"]
        else:
            found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", part["block"], re.MULTILINE)
            for number, (command, shown) in enumerate(found, start=1):
                code = int(part["code"] or 0) if number == len(found) else 0
                yield Step(command, shown if shown.strip() else None, code, why)
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


@pytest.mark.parametrize("page", [page for page in GUIDES if any(not step.not_run for step in steps(page))], ids=str)
def test_commands_print_what_the_guide_shows(
    page: Path, tmp_path: Path, npukit: Npukit, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOT", str(ROOT))
    monkeypatch.setenv("DEMO", str(demo))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    folder = tmp_path
    for step in steps(page):
        if step.not_run:
            continue
        if re.match(r"npukit [^|&;<>$]*$", step.command):
            ended = npukit(*shlex.split(step.command)[1:], cwd=folder)
        else:
            line = f"{{ {step.command}\n}} && pwd > {tmp_path}/.folder"
            ended = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)
            folder = Path((tmp_path / ".folder").read_text().strip()) if ended.returncode == 0 else folder
        printed = ended.stderr + ended.stdout
        assert ended.returncode == step.code, f"{step.command}\n{printed}"
        assert step.shown is None or matches(step.shown, printed), f"{step.command}\n{printed}"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_commands_stand_in_console_blocks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert not [code for kind, code in blocks if kind != "console" and re.search(r"^(\$|npukit) ", code, re.MULTILINE)]


if __name__ == "__main__":
    found = [step for page in GUIDES for step in steps(page)]
    run = [step for step in found if not step.not_run]
    print(f"{len(run)} commands are run, {len(found) - len(run)} are not:")
    for why in sorted({step.not_run for step in found} - {""}):
        print(f"{sum(step.not_run == why for step in found):4}  {why}")
