"""Runs that the studio started: each is a folder with its record, its process and how it ended, so that any server
that is started in the same workspace finds it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from npukit.errors import NpukitError
from npukit.launch.run import SAFE_PATH
from npukit.report.writing import make_folder
from npukit.studio import wrapper
from npukit.studio.wrapper import EXIT, LOG, PROCESS, RECORD, RESULT, birth, read, write

STARTED, STOPPING, RANKS = "started", "stopping", "ranks"
PATIENCE = 20.0  # seconds until a process must have written that it is alive
NAME = re.compile(r"\d{8}-\d{6}-\d{6}")
FOUND = 1  # the exit code of a verb that found a difference or a problem
BY_SIGNAL = 128  # and higher: ended by a signal
T = TypeVar("T")


class State(str, Enum):
    """The state of a run."""

    queued = "queued"
    running = "running"
    stopping = "stopping"
    finished = "finished"
    stopped = "stopped"
    failed = "failed"
    killed = "killed"
    unfinished = "unfinished"  # a run that was started elsewhere and has not written an end


LIVE = (State.queued, State.running, State.stopping)


@dataclass(frozen=True)
class Record:
    """The description of a run, which is written once."""

    id: str
    kind: str  # the verb
    title: str
    argv: tuple[str, ...]
    cwd: str
    command: str  # as it would be typed in the workspace
    created: float
    device: str = "cpu"  # npu, cuda, sim or cpu
    cards: int = 0
    has_result: bool = False  # its standard output is the result
    output: str = ""  # the folder, model or page that it writes
    variables: Mapping[str, str] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()  # of its cards
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Exit:
    """How a run ended."""

    code: int
    ended: float  # seconds since 1970, as all times here


@dataclass(frozen=True)
class RunProcess:
    """The process around a run."""

    pid: int
    birth: str | None
    began: float


RECORDS, EXITS, PROCESSES = TypeAdapter(Record), TypeAdapter(Exit), TypeAdapter(RunProcess)


def _valid(kind: TypeAdapter[T], file: Path) -> T | None:
    """What a file says; None if there is none, or if it was cut off or changed."""
    try:
        return kind.validate_json(file.read_bytes())
    except (OSError, ValueError):
        return None


class Run:
    """A run on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def record(self) -> Record:
        """Its description; an error if it cannot be read."""
        if (record := _valid(RECORDS, self.folder / RECORD)) is None:
            raise NpukitError(f"{self.folder / RECORD} cannot be read: delete the folder of this run.")
        return record

    @property
    def is_readable(self) -> bool:
        """Whether there is a record, and it is whole."""
        return _valid(RECORDS, self.folder / RECORD) is not None

    @property
    def exit(self) -> Exit | None:
        """How it ended, if it has."""
        return _valid(EXITS, self.folder / EXIT)

    @property
    def process(self) -> RunProcess | None:
        """Its process, once it has started."""
        return _valid(PROCESSES, self.folder / PROCESS)

    @property
    def state(self) -> State:
        """Determined each time: a process that has disappeared without an exit code was killed."""
        was_asked = (self.folder / STOPPING).exists()
        if ended := self.exit:
            return self._ended(ended.code, was_asked)
        if not (self.folder / STARTED).exists():
            return State.queued
        process = self.process
        if process is None:
            fresh = time.time() - (self.folder / STARTED).stat().st_mtime < PATIENCE
            return State.running if fresh else State.killed
        if birth(process.pid) != process.birth:
            if ended := self.exit:  # it ended between the two checks
                return self._ended(ended.code, was_asked)
            return State.stopped if was_asked else State.killed
        return State.stopping if was_asked else State.running

    def _ended(self, code: int, was_asked: bool) -> State:
        if code == 0 or (code == FOUND and self._has_found()):
            return State.finished
        number = -code if code < 0 else code - BY_SIGNAL
        if number in (signal.SIGTERM, signal.SIGINT) or (was_asked and number == signal.SIGKILL):
            return State.stopped
        return State.killed if 0 < number < 65 else State.failed

    def _has_found(self) -> bool:
        """Whether it ended with a result and no error: a check that finds something has not failed."""
        result = read(self.folder / RESULT) or {}
        return result.get("result") is not None and not result.get("error")

    @property
    def seconds(self) -> float | None:
        """The seconds that it has run."""
        process, ended = self.process, self.exit
        if process is None:
            return None
        if ended:
            return ended.ended - process.began
        return time.time() - process.began if self.state in LIVE else None

    def signal(self, now: bool) -> None:
        """Ask the run to save and stop, or kill all its processes at once."""
        if self.state is State.queued:
            (self.folder / STARTED).touch()
            (self.folder / STOPPING).touch()
            write(self.folder / EXIT, {"code": -signal.SIGTERM, "ended": time.time()})
            return
        process = self.process
        while process is None and self.state is State.running:  # it is just starting
            time.sleep(0.02)
            process = self.process
        if process is None or self.exit is not None or birth(process.pid) != process.birth:
            raise NpukitError("This run has ended already.")
        (self.folder / STOPPING).touch()
        if now:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGTERM)

    def start(self, record: Record) -> subprocess.Popen[bytes]:
        """Start the process independently of this one, in its own session and without pipes."""
        write(self.folder / RECORD, asdict(record))
        (self.folder / STARTED).touch()
        return subprocess.Popen(
            [sys.executable, *SAFE_PATH, "-m", wrapper.__name__, str(self.folder)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / LOG).open("ab"),
            start_new_session=True,
            cwd=self.folder,
        )

    def again(self) -> None:
        """Queue it again; its files stay."""
        if self.state in LIVE:
            raise NpukitError("This run has not ended yet.")
        for name in (EXIT, PROCESS, STARTED, STOPPING):
            (self.folder / name).unlink(missing_ok=True)

    def delete(self) -> None:
        """Remove the record and the logs."""
        if self.state in LIVE:
            raise NpukitError("This run has not ended yet: stop it first.")
        shutil.rmtree(self.folder)


class Runs:
    """All runs of a workspace."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "runs"
        make_folder(state)
        state.chmod(0o700)
        make_folder(self.folder)
        ignore = state.parent / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")

    def __iter__(self) -> Iterator[Run]:
        """All runs whose record is whole, the oldest first."""
        names = sorted(path.name for path in self.folder.iterdir() if NAME.fullmatch(path.name))
        return (run for name in names if (run := Run(self.folder / name)).is_readable)

    def find(self, name: str) -> Run:
        """The run of this id."""
        run = Run(self.folder / name)
        if not NAME.fullmatch(name) or not run.is_readable:
            raise NpukitError("There is no such run; it may have been deleted.")
        return run

    def add(self, kind: str, words: Sequence[str], cwd: Path, title: str = "", **more: Any) -> Run:
        """Queue `npukit KIND WORDS...`; a `config` is written beside the record, and named by its path.

        >>> runs.add("train", ["--device", "sim"], Path("work"), config="model: ...", device="sim", cards=1).state
        <State.queued: 'queued'>
        """
        now = time.time()
        name = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now % 1 * 1e6):06}"
        folder = self.folder / name
        folder.mkdir(mode=0o700)
        config = more.pop("config", None)
        if config is not None:
            (folder / "config.yaml").write_text(config, encoding="utf-8")
            words = [(folder / "config.yaml").relative_to(cwd).as_posix(), *words]
        if page := more.pop("page", None):  # the verb's option for a report
            words = [*words, page, (folder / "report.html").relative_to(cwd).as_posix()]
        arguments = [*kind.split(), *words]
        record = Record(
            id=name,
            kind=kind,
            title=title or kind,
            argv=(sys.executable, *SAFE_PATH, "-m", "npukit", *arguments),
            cwd=str(cwd),
            command=shlex.join(["npukit", *arguments]),
            created=now,
            **more,
        )
        write(folder / RECORD, asdict(record))
        return Run(folder)
