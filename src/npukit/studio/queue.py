"""Starts queued runs, the oldest first, when the cards that they need are free."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from npukit.launch.devices import VISIBLE_BY
from npukit.launch.launch import LOG_FOLDER
from npukit.machine.status import MachineStatus
from npukit.machine.status import status as machine_status
from npukit.studio.runs import LIVE, Record, Run, Runs, State
from npukit.studio.wrapper import LOG

SIMULATED_CARDS = 8  # the usual number in a server
QUIET_VARIABLES = {"PYTHONUNBUFFERED": "1", "COLUMNS": "120"}


class Queue:
    """The queue of a workspace; several servers may use the same one."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self._children: list[subprocess.Popen[bytes]] = []

    def tick(self) -> None:
        """Start the runs that can be started."""
        self._children = [child for child in self._children if child.poll() is None]
        with _locked(self.runs.folder.parent / "lock") as is_mine:
            if not is_mine:
                return
            states = [(run, run.state) for run in self.runs]
            waiting = [run for run, state in states if state is State.queued]
            if not waiting:
                return
            live = [run.record for run, state in states if state in LIVE and state is not State.queued]
            full: set[str] = set()  # kinds of devices that an older run waits for
            for run in waiting:
                record = run.record
                numbers = None if record.device in full else free_cards(record, live)
                if numbers is None:
                    full.add(record.device)
                    continue
                record = with_cards(record, numbers, run.folder)
                self._children.append(run.start(record))
                live.append(record)


def free_cards(record: Record, live: list[Record], status: MachineStatus | None = None) -> tuple[int, ...] | None:
    """The numbers of the cards that a run can have now; None if there are too few."""
    if record.device == "cpu" or not record.cards:
        return ()
    taken = {number for other in live if other.device == record.device for number in other.numbers}
    if record.device == "sim":
        numbers = set(range(SIMULATED_CARDS))
    else:
        status = status or machine_status()
        numbers = {card.number for card in status.devices if not card.processes}
    free = sorted(numbers - taken)
    return tuple(free[: record.cards]) if len(free) >= record.cards else None


def device_of(device: str) -> str:
    """The device that auto means on this machine."""
    real = {"npu": "npu", "gpu": "cuda", "cpu": "cpu"}
    return real[machine_status().kind] if device == "auto" else device


def with_cards(record: Record, numbers: tuple[int, ...], folder: Path) -> Record:
    """The record of a run that uses these cards and no others."""
    variables = {**record.variables, **QUIET_VARIABLES, LOG_FOLDER: str(folder / "ranks")}
    if name := VISIBLE_BY.get(record.device):
        variables[name] = ",".join(map(str, numbers))
    return replace(record, numbers=numbers, variables=variables)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[bool]:
    """Lock the queue; False if another server is starting runs."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)


def log_files(run: Run) -> dict[str, Path]:
    """The logs of a run: of its launcher, and of every rank."""
    ranks = sorted((run.folder / "ranks").rglob("rank*.log"), key=lambda file: (len(file.name), file))
    return {"output": run.folder / LOG} | {
        file.relative_to(run.folder / "ranks").with_suffix("").as_posix(): file for file in ranks
    }
