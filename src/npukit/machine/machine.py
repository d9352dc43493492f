"""A machine as the probes see it: files under a root folder, programs, environment variables. Nothing here raises."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MAX_CHARACTERS = 1_000_000
PROGRAM_FOLDERS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class ProgramResult:
    """A program's output. `code` is None if the program does not exist or did not finish in time."""

    output: str = ""
    code: int | None = None
    late: bool = False

    @property
    def good(self) -> bool:
        return self.code == 0


Runner = Callable[[Sequence[str], Mapping[str, str], float], ProgramResult]


def run_program(command: Sequence[str], environ: Mapping[str, str], seconds: float) -> ProgramResult:
    """Run a program for at most `seconds`."""
    try:
        result = subprocess.run(
            command,
            env=dict(environ),
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return ProgramResult(late=True)
    except OSError:
        return ProgramResult()
    return ProgramResult(result.stdout[:MAX_CHARACTERS], result.returncode)


@dataclass(frozen=True)
class Machine:
    """This machine, or one described by a folder.

    >>> Machine(root=tmp_path, environ={}).read("/etc/ascend_install.info")
    """

    root: Path = Path("/")
    run: Runner = run_program
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    python: str = platform.python_version()
    processor: str = platform.machine()
    python_paths: Sequence[Path] = field(default_factory=lambda: [Path(path or ".") for path in sys.path])
    user: int = field(default_factory=os.geteuid)
    groups: frozenset[int] = field(default_factory=lambda: frozenset([os.getegid(), *os.getgroups()]))

    def path(self, path: str | Path) -> Path:
        """The location of one of the machine's paths."""
        return self.root / str(path).lstrip("/")

    def shown(self, path: Path) -> str:
        """A path as the machine itself would name it."""
        return str(path) if self.root == Path("/") else "/" + str(path.relative_to(self.root))

    def read(self, path: str | Path) -> str:
        """The text of a file; empty if it cannot be read."""
        try:
            with self.path(path).open(errors="replace") as file:
                return file.read(MAX_CHARACTERS)
        except (OSError, ValueError):
            return ""

    def settings(self, path: str | Path) -> dict[str, str]:
        """The settings in a file of `name=value` lines."""
        pairs = (line.split("=", 1) for line in self.read(path).splitlines() if "=" in line and line[0] != "#")
        return {name.strip(): value.strip().strip('"') for name, value in pairs}

    def exists(self, path: str | Path) -> bool:
        try:
            return self.path(path).exists()
        except OSError:
            return False

    def glob(self, pattern: str) -> list[Path]:
        """The matching paths, sorted."""
        try:
            return sorted(self.root.glob(pattern.lstrip("/")))
        except OSError:
            return []

    def may_use(self, path: Path) -> bool:
        """Whether the file's mode lets the user read and write it."""
        try:
            status = path.stat()
        except OSError:
            return False
        if self.user == 0:
            return True
        if status.st_uid == self.user:
            return status.st_mode & 0o600 == 0o600
        if status.st_gid in self.groups:
            return status.st_mode & 0o060 == 0o060
        return status.st_mode & 0o006 == 0o006

    def ask(self, program: str, *arguments: str, seconds: float = 1.0) -> ProgramResult:
        """Run a program of this machine. The result is empty if there is none of that name."""
        for folder in self.environ.get("PATH", PROGRAM_FOLDERS).split(os.pathsep):
            candidate = self.path(folder) / program
            if os.access(candidate, os.X_OK) and candidate.is_file():
                return self.run([str(candidate), *arguments], self.environ, seconds)
        return ProgramResult()
