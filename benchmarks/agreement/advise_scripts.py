"""Slow scripts in the styles of other people: does `npukit advise` name the cause first or second, with its line?

Each script of `slow_scripts` is recorded by `npukit profile`, without a change to it. Its lines that are slow say so
in a comment with the expected code; one without such a comment is clean and must get nothing above 5% of the step.
The newest part comes first. A row is printed as soon as it is known: `rank` is the place of the cause among the
findings (for a clean script: of the first finding above 5%), `line` whether its line is right.

    python -m benchmarks advise_scripts [--part PART] [--device cpu|sim|cuda] [--only NAME] [--keep DIR]
                                        [--jobs N] [--limit SECONDS]

`--jobs` scripts run at the same time; on the CPU they disturb each other. A script ends after `--limit` seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
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
PARTS = ("sixth", "fifth", "fourth", "third", "second", "first")
MARK = re.compile(r"# slow: (NPK\d+)")
CLEAN_LIMIT = 5.0  # percent of the step
FIRST, LAST = 4, 6
HEAD = f"{'script':30} {'part':7} {'cause':13} rank line  findings"
Device = Literal["cpu", "sim", "cuda"]


@dataclass(frozen=True)
class Verdict:
    """What became of a script: the causes it names, the place of the first finding with one, and its line."""

    causes: frozenset[str]
    rank: int = 0  # 0: not among the findings; of a clean script: there is none above the limit
    line: bool = False
    findings: str = ""
    recorded: bool = True

    @property
    def good(self) -> bool:
        """Whether the cause is first or second, or a clean script is called clean."""
        return self.recorded and (0 < self.rank <= 2 if self.causes else not self.rank)


def expected(script: Path) -> tuple[frozenset[str], set[int]]:
    """The codes and the lines that a script's comments name."""
    marks = [(match[1], number) for number, line in enumerate(script.read_text().splitlines(), 1)
             for match in MARK.finditer(line)]  # fmt: skip
    return frozenset(code for code, _ in marks), {number for _, number in marks}


def judged(script: Path, advice: Sequence[Advice]) -> Verdict:
    """Where the cause is among the findings, and whether its line is right."""
    causes, lines = expected(script)
    findings = ", ".join(_short(item) for item in advice[:3])
    for rank, item in enumerate(advice, 1):
        if item.finding.code in causes or (not causes and item.percent > CLEAN_LIMIT):
            right = [one for one in advice[rank - 1 : 2] if one.finding.code in causes and _is_at(one, lines)]
            return Verdict(causes, rank, bool(right), findings)
    return Verdict(causes, findings=findings)


def _is_at(advice: Advice, lines: set[int]) -> bool:
    return advice.finding.place is not None and advice.finding.place.line in lines


def _short(advice: Advice) -> str:
    line = f" line {advice.finding.place.line}" if advice.finding.place else ""
    return f"{advice.finding.code} {advice.percent:.0f}%{line}"


def try_script(script: Path, device: Device, folder: Path) -> Verdict:
    """Record a script as `npukit profile` does, and judge its profile."""
    folder.mkdir(parents=True)
    (folder / script.name).write_text(_prepared(script, device))
    try:
        (_record_on_simulator if device == "sim" else _record_here)(folder, script.name, device)
        return judged(script, judge(read_profiles([folder / "profile"])).advice)
    except NpukitError as error:
        said = (folder / "stderr.txt").read_text(errors="replace").split("\n")
        last = next((line for line in reversed(said) if "Error" in line), str(error))
        return Verdict(expected(script)[0], findings=last[:90], recorded=False)


def _prepared(script: Path, device: Device) -> str:
    """The script, on its device unless it chooses one itself; the lines keep their numbers."""
    text = script.read_text()
    if device == "cpu" or "torch.accelerator" in text:
        return text
    return f"import torch; torch.set_default_device('{'npu' if device == 'sim' else device}'); {text}"


def _record_on_simulator(folder: Path, name: str, device: Device) -> None:
    options = ["--device", device, "--steps", f"{FIRST}-{LAST}", "--stop-script"]
    command = [sys.executable, "-m", "npukit", "profile", *options, "--", "python", name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    (folder / "stderr.txt").write_text(done.stderr)
    if done.returncode:
        raise NpukitError(f"Its recording ended with exit code {done.returncode}.")


def _record_here(folder: Path, name: str, device: Device) -> None:
    """Record it in this process, a fork of one that has imported torch."""
    before = Path.cwd()
    os.chdir(folder)
    os.environ |= {"NPUKIT_DEVICE": device, "KINETO_LOG_LEVEL": "99"}
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT), 2)
    recorder = ProfileRecorder(Settings(FIRST, LAST, 1, "profile", stop=True))
    Path("profile").mkdir()
    recorder.install()
    try:
        run_command([name])
    except BaseException:
        traceback.print_exc()
    recorder.settings = Settings(FIRST, LAST, 1, "profile")  # it does not end this process, too
    recorder.close()
    os.chdir(before)


class Attempt:
    """A process that tries a script, in a group of its own."""

    def __init__(self, script: Path, device: Device, folder: Path) -> None:
        self.script, self._began = script, time.monotonic()
        self._answer, theirs = multiprocessing.Pipe(duplex=False)
        context = multiprocessing.get_context("fork")
        self.process: BaseProcess = context.Process(target=_attempt, args=(script, device, folder, theirs))
        self.process.start()
        theirs.close()

    def left(self, limit: float) -> float:
        """The seconds that it may still take."""
        return max(0.0, self._began + limit - time.monotonic())

    def verdict(self) -> Verdict:
        """End it and read its answer."""
        try:
            return self._answer.recv() if self._answer.poll() else self._without("stopped at the time limit")
        except EOFError:
            return self._without("its process died")
        finally:
            with_children = self.process.pid
            if with_children and self.process.is_alive():
                os.killpg(with_children, signal.SIGKILL)
            self.process.join()

    def _without(self, why: str) -> Verdict:
        return Verdict(expected(self.script)[0], findings=why, recorded=False)


def _attempt(script: Path, device: Device, folder: Path, answer: multiprocessing.connection.Connection) -> None:
    os.setsid()
    answer.send(try_script(script, device, folder))
    os._exit(0)


def attempts(scripts: Sequence[Path], device: Device, folder: Path, jobs: int, limit: float) -> Iterator[Attempt]:
    """Try the scripts, `jobs` at a time; each as soon as it has ended or its time is over."""
    waiting = list(scripts)
    running: list[Attempt] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            script = waiting.pop(0)
            running.append(Attempt(script, device, folder / script.stem))
        wait([attempt.process.sentinel for attempt in running], min(attempt.left(limit) for attempt in running))
        ended = [one for one in running if not one.process.is_alive() or not one.left(limit)]
        running = [one for one in running if one not in ended]
        yield from ended


def main(
    part: Literal["", "first", "second", "third", "fourth", "fifth", "sixth"] = "",
    device: Device = "cpu",
    only: str = "",
    keep: Path | None = None,
    jobs: int = 1,
    limit: int = 300,
) -> None:
    torch.set_num_threads(1)  # a busy machine measures itself otherwise
    folder = (keep or Path(tempfile.mkdtemp())).absolute()
    parts = [part] if part else PARTS
    scripts = [script for name in parts for script in sorted((SCRIPTS / name).glob("*.py")) if only in script.stem]
    verdicts = []
    print(HEAD, flush=True)
    for attempt in attempts(scripts, device, folder, jobs, limit):
        verdict = attempt.verdict()
        verdicts.append(verdict)
        print(_row(attempt.script, verdict), flush=True)
    if keep is None:
        shutil.rmtree(folder, ignore_errors=True)
    recorded = [verdict for verdict in verdicts if verdict.recorded]
    slow, clean = ([one for one in recorded if bool(one.causes) is wanted] for wanted in (True, False))
    print(f"{sum(one.good for one in slow)} of {len(slow)} causes named first or second, "
          f"{sum(one.good and one.line for one in slow)} with the right line; {sum(one.good for one in clean)} of "
          f"{len(clean)} clean scripts without a finding above 5%; {len(verdicts) - len(recorded)} not recorded; "
          f"{device}")  # fmt: skip
    sys.exit(0 if all(verdict.good for verdict in verdicts) else 1)


def _row(script: Path, verdict: Verdict) -> str:
    causes = " ".join(sorted(verdict.causes)) or "none"
    rank = str(verdict.rank or "-") if verdict.recorded else "NOT"
    line = ("yes" if verdict.line else "no") if verdict.recorded and verdict.causes else ""
    return f"{script.stem:30} {script.parent.name:7} {causes:13} {rank:>4} {line:4}  {verdict.findings}"
