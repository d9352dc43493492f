"""Slow scripts in the styles of other people: does `npukit advise` name the cause first or second, with its line?

Each script of `slow_scripts` is recorded by `npukit profile`, without a change to it. Its lines that are slow say so
in a comment with the expected code; one without such a comment is clean and must get nothing above 5% of the step.

    python -m benchmarks advise_scripts [--part PART] [--device cpu|sim|cuda] [--only NAME] [--keep DIR]
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from npukit.errors import NpukitError
from npukit.launch.script import run_command
from npukit.performance.advise.advise import judge
from npukit.performance.advise.rule import Advice
from npukit.performance.profile import Settings
from npukit.performance.read import read_profiles
from npukit.performance.recording.recorder import ProfileRecorder

SCRIPTS = Path(__file__).parent / "slow_scripts"
MARK = re.compile(r"# slow: (NPK\d+)")
CLEAN_LIMIT = 5.0  # percent of the step
FIRST, LAST = 4, 6


def expected(script: Path) -> tuple[set[str], set[int]]:
    """The codes and the lines that a script's comments name."""
    marks = [(match[1], number) for number, line in enumerate(script.read_text().splitlines(), 1)
             for match in MARK.finditer(line)]  # fmt: skip
    return {code for code, _ in marks}, {number for _, number in marks}


def record(script: Path, device: str, folder: Path) -> None:
    """Record a script as `npukit profile` does; on the CPU in a fork of this process, which has imported torch."""
    folder.mkdir(parents=True)
    shutil.copy(script, folder)
    if device != "cpu":
        kind = "npu" if device == "sim" else device
        start = f"import torch; torch.set_default_device('{kind}'); "  # the lines keep their numbers
        (folder / script.name).write_text(start + script.read_text())
        options = ["--device", device, "--steps", f"{FIRST}-{LAST}", "--stop-script"]
        command = [sys.executable, "-m", "npukit", "profile", *options, "--", "python", script.name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        (folder / "stderr.txt").write_text(done.stderr)
        if done.returncode:
            raise NpukitError(f"its recording ended with exit code {done.returncode}")
        return
    child = multiprocessing.get_context("fork").Process(target=_record_here, args=(folder, script.name))
    child.start()
    child.join()


def _record_here(folder: Path, name: str) -> None:
    os.chdir(folder)
    os.environ |= {"NPUKIT_DEVICE": "cpu", "KINETO_LOG_LEVEL": "99"}
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT), 2)
    recorder = ProfileRecorder(Settings(FIRST, LAST, 1, "profile", stop=True))
    Path("profile").mkdir()
    recorder.install()
    try:
        run_command([name])
    except BaseException:
        traceback.print_exc()
    recorder.close()
    os._exit(0)


def judged(script: Path, advice: Sequence[Advice]) -> tuple[bool, bool]:
    """Whether the cause is among the first two, and whether its line is right."""
    codes, lines = expected(script)
    if not codes:
        return all(item.percent <= CLEAN_LIMIT for item in advice), True
    named = [item.finding for item in advice[:2] if item.finding.code in codes]
    return bool(named), any(item.place and item.place.line in lines for item in named)


def main(
    part: Literal["", "first", "second", "third", "fourth", "fifth"] = "",
    device: Literal["cpu", "sim", "cuda"] = "cpu",
    only: str = "",
    keep: Path | None = None,
) -> None:
    torch.set_num_threads(1)  # a busy machine measures itself otherwise
    folder = (keep or Path(tempfile.mkdtemp())).absolute()
    good, right_line, slow, clean, total = 0, 0, 0, 0, 0
    for script in sorted((SCRIPTS / part).rglob("*.py")):
        if only not in script.stem:
            continue
        codes = expected(script)[0]
        total, slow = total + 1, slow + bool(codes)
        try:
            record(script, device, folder / script.stem)
            advice = judge(read_profiles([folder / script.stem / "profile"])).advice
        except NpukitError as error:
            print(f"{script.stem:30} {' '.join(sorted(codes)) or 'nothing':8} NO    {error}", flush=True)
            print(*(folder / script.stem / "stderr.txt").read_text().splitlines()[-3:], sep="\n", flush=True)
            continue
        named, line = judged(script, advice)
        good, right_line = good + (named and bool(codes)), right_line + (named and line and bool(codes))
        clean += named and not codes
        verdict = ("line" if line else "yes") if named else "NO"
        first = [_short(item) for item in advice[:3]]
        print(f"{script.stem:30} {' '.join(sorted(codes)) or 'nothing':8} {verdict:5} {', '.join(first)}", flush=True)
    print(f"{good} of {slow} causes named first or second, {right_line} with the right line; "
          f"{clean} of {total - slow} clean scripts without a finding above 5%; {device}")  # fmt: skip
    sys.exit(0 if good == slow and clean == total - slow else 1)


def _short(advice: Advice) -> str:
    line = f" line {advice.finding.place.line}" if advice.finding.place else ""
    return f"{advice.finding.code} {advice.percent:.0f}%{line}"
