"""Run the self-test: one process per group of checks, monitored by this one, which does not import torch.

If a process crashes, or takes too long for a check, that check has failed, and another process continues after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from npukit.launch.devices import Devices
from npukit.launch.run import AGENT, script_arguments, spare_launcher, tied
from npukit.report.unfinished import temporary_folder
from npukit.selftest.result import CheckResult, Outcome, Selftest

GROUPS = ("operators", "formulas", "collectives", "training", "serving", "precision")
LIMIT = 180.0  # seconds for one check: the first use of an operator on a card may compile it
MAX_LOST = 3  # after losing this many processes in a row, the card will not respond any more
BETWEEN_LOOKS = 0.05  # seconds
TAIL = 2000  # characters of a lost process's output

OnGroup = Callable[[str, Sequence[CheckResult]], None]


def selftest(
    devices: Devices,
    groups: Sequence[str] = GROUPS,
    limit: float = LIMIT,
    on_group: OnGroup = lambda group, checks: None,
) -> Selftest:
    """Run the groups on these devices. `on_group` is called after each.

    >>> selftest(choose("sim", count=2), ["training"]).good
    True
    """
    checks: list[CheckResult] = []
    for group in groups:
        results = list(run_group(group, devices, limit))
        on_group(group, results)
        checks += results
    return Selftest(str(devices), tuple(checks))


def run_group(group: str, devices: Devices, limit: float) -> Iterator[CheckResult]:
    """The outcome of each check of a group, from as many processes as necessary."""
    if group == "collectives" and devices.count < 2:
        yield CheckResult(group, "all", "skipped", message="needs two devices")
        return
    first = lost = 0
    while True:
        worker = _Worker(group, first, devices, limit)
        for result in worker.results():
            yield result
            lost = 0 if result.outcome in ("passed", "failed", "skipped") else lost
        if worker.outcome is None:
            return
        if worker.names is None:
            yield CheckResult(group, "start", worker.outcome, worker.seconds, message=worker.message)
            return
        current = worker.current
        if current < len(worker.names):
            yield CheckResult(group, worker.names[current], worker.outcome, worker.seconds, message=worker.message)
        first, lost = current + 1, lost + 1
        if lost == MAX_LOST:
            why = f"{lost} processes in a row were lost"
            for name in worker.names[first:]:
                yield CheckResult(group, name, "not run", message=why)
            return
        if first >= len(worker.names):
            return


class _Worker:
    """A process that runs the checks of a group from `first` on, and how it ended."""

    def __init__(self, group: str, first: int, devices: Devices, limit: float) -> None:
        self.group, self.first, self.devices, self.limit = group, first, devices, limit
        self.names: list[str] | None = None
        self.current = first  # the check that is running
        self.outcome: Outcome | None = None  # how the process failed; None if it finished
        self.message = ""
        self.seconds = 0.0

    def results(self) -> Iterator[CheckResult]:
        """The results that the process reports while it runs."""
        with temporary_folder("selftest") as folder:
            results, log = folder / "checks.jsonl", folder / "log"
            with log.open("wb") as output:
                process = self._start(results, output)
            try:
                yield from self._watched(process, results)
            finally:
                _end(process)
            if self.outcome == "crashed" and not process.returncode:
                self.outcome = None
            elif self.outcome:
                self.message = _last_words(self.outcome, process.returncode, self.limit, log)

    def _start(self, results: Path, output: Any) -> subprocess.Popen[bytes]:
        command = script_arguments(
            ["-m", "npukit.selftest.worker", self.group, str(self.first), str(results)], auto=False
        )
        environment = tied(self.devices.environment())
        if self.group == "collectives":
            spare_launcher(environment, self.devices.count)
            command = [*AGENT[1:], "--standalone", "--nproc-per-node", str(self.devices.count), *command]
        return subprocess.Popen(
            [sys.executable, *command], env=environment, stdout=output, stderr=output, start_new_session=True
        )

    def _watched(self, process: subprocess.Popen[bytes], results: Path) -> Iterator[CheckResult]:
        read, began = 0, time.monotonic()
        while True:
            ended = process.poll() is not None  # before the last read, which then sees everything
            lines = results.read_text().split("\n")[:-1] if results.exists() else []
            for line in map(json.loads, lines[read:]):
                began = time.monotonic()
                yield from self._heard(line)
            read = len(lines)
            self.seconds = round(time.monotonic() - began, 3)
            if ended or self.seconds > self.limit:
                self.outcome = "crashed" if ended else "timed out"
                return
            time.sleep(BETWEEN_LOOKS)

    def _heard(self, line: dict[str, Any]) -> Iterator[CheckResult]:
        if "checks" in line:
            self.names = line["checks"]
            if not self.names:
                yield CheckResult(self.group, "all", "skipped", message=line["missing"] or "not for this device")
        elif "start" in line:
            self.current = line["start"]
        elif self.names:
            number = line.pop("end")
            self.current = number + 1
            yield CheckResult(self.group, self.names[number], **line)


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a process that hangs in the driver survives even this
        process.wait(10)


def _last_words(outcome: Outcome, code: int | None, limit: float, log: Path) -> str:
    if outcome == "timed out":
        how = f"nothing for {limit:.0f} s"
    elif code is not None and code < 0:
        how = f"the process was ended by {signal.Signals(-code).name}"
    else:
        how = f"the process ended with exit code {code}"
    return f"{how}\n{log.read_text(errors='replace')[-TAIL:].strip()}".strip()
