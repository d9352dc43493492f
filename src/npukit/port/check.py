"""Prove a migration by running it: changed files must import, and a command that passed before must still pass."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npukit.errors import NpukitError
from npukit.launch.devices import Devices, Wanted, choose
from npukit.launch.run import own_first
from npukit.migrate.journal import write_copy
from npukit.migrate.migration import Migration
from npukit.port.imports import ImportCheck, Imported, check_imports
from npukit.report.report import counted
from npukit.report.unfinished import temporary_folder

_TAIL = 30
_MAX_SECONDS = 1800
_COUNTS = re.compile(r"(\d+) (passed|failed|errors?|skipped)\b")


@dataclass(frozen=True)
class Ran:
    """A command that was run in a folder on a device."""

    device: str
    exit_code: int | None  # None if it took too long
    output: str  # its last lines

    @property
    def passed(self) -> bool:
        return self.exit_code == 0

    @property
    def counts(self) -> dict[str, int]:
        """The numbers in pytest's summary, by outcome.

        >>> Ran("the CPU", 1, "== 1 failed, 2 passed in 0.1s ==").counts
        {'failed': 1, 'passed': 2}
        """
        return {word: int(number) for number, word in _COUNTS.findall(self.output.rpartition("\n")[2])}


@dataclass(frozen=True)
class PortCheck(ImportCheck):
    """The results of importing the changed files and of running a command, before and after the migration."""

    before: Ran | None = None  # the command on the CPU; None if there was none
    after: tuple[Ran, ...] = ()  # on the CPU and on a simulated NPU

    @property
    def good(self) -> bool:
        """Whether the command passes after the migration wherever possible: everywhere, if it passed before."""
        if self.before is None:
            return True
        return all(is_no_worse(self.before, ran) for ran in self.after)


def is_no_worse(before: Ran, after: Ran) -> bool:
    """Whether a command passes, or fails no worse than before: no more failed and no fewer passed tests."""
    if after.passed:
        return True
    if before.passed or not before.counts or not after.counts:
        return before.exit_code == after.exit_code and not before.passed
    failed = [sum(run.counts.get(word, 0) for word in ("failed", "error", "errors")) for run in (before, after)]
    return failed[1] <= failed[0]


def check(migration: Migration, source: Path, command: str, log: Callable[[str], None] = lambda _: None) -> PortCheck:
    """Check a migration of `source` that has not been written yet; `command` may be empty.

    >>> check(migrate(Path("project")), Path("project"), "python -m pytest -q").good
    True
    """
    argv = arguments_of(command)
    log(f"importing {counted(len(migration.changes), 'changed file')} before and after")
    checked = check_imports(migration, source)
    if not argv:
        return PortCheck(checked.migration, checked.imported)
    with temporary_folder("check") as folder:
        before, after = folder / "before", folder / "after"
        write_copy(replace(migration, changes=()), source, before)
        write_copy(checked.migration, source, after)
        log(f"running {command} before")
        original = run_in(before, argv, choose(Wanted.cpu))
        log(f"running {command} after, on the CPU and on a simulated NPU")
        migrated = tuple(run_in(after, argv, choose(wanted)) for wanted in (Wanted.cpu, Wanted.sim))
    return PortCheck(checked.migration, checked.imported, original, migrated)


def arguments_of(command: str) -> list[str]:
    """A command as a list of arguments, with npukit's own interpreter for python."""
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise NpukitError(f"The command {command!r} cannot be read: {error}.") from None
    return [sys.executable, *argv[1:]] if argv and argv[0] in ("python", "python3") else argv


def run_in(folder: Path, argv: Sequence[str], devices: Devices) -> Ran:
    """Run a command in a folder on these devices.

    >>> run_in(Path("project"), ["make", "test"], choose("sim")).passed
    True
    """
    environment = own_first(folder, {**devices.environment(), "PYTHONDONTWRITEBYTECODE": "1"})
    try:
        done = subprocess.run(
            argv, cwd=folder, env=environment, timeout=_MAX_SECONDS, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    except FileNotFoundError:
        raise NpukitError(f"There is no command {argv[0]}: give one that runs in {folder.name}.") from None
    except subprocess.TimeoutExpired as error:
        return Ran(str(devices), None, _tail(error.stdout or b""))
    return Ran(str(devices), done.returncode, _tail(done.stdout))


def _tail(output: bytes) -> str:
    return "\n".join(output.decode(errors="replace").rstrip().split("\n")[-_TAIL:])


def _unknown(imported: Imported) -> str:
    if imported.before == "exits":
        return "exits when it is imported, as scripts that need arguments do"
    return f"did not import before either ({imported.error})"


def as_lines(checked: PortCheck) -> Iterator[str]:
    """The results as lines for the terminal."""
    devices = list(dict.fromkeys(imported.device for imported in checked.imported))
    for device in devices:
        here = [imported for imported in checked.imported if imported.device == device]
        ok = sum(imported.before == imported.after == "imports" for imported in here)
        stood_in = sorted({package for imported in here for package in imported.stand_ins})
        instead = f", with stand-ins for {', '.join(stood_in)}" if stood_in else ""
        yield f"Imports on {device}: {ok} of {len(here)} changed files import as before{instead}."
        unknown = [imported for imported in here if imported.before in ("fails", "exits")]
        yield from (f"  {imported.file}: {_unknown(imported)}" for imported in unknown)
    yield from (f"  {file.file}: put back, since on {file.device}: {file.error}" for file in checked.put_back)
    if checked.before:
        for when, ran in (("before", checked.before), *(("after", run) for run in checked.after)):
            counts = ", ".join(f"{number} {word}" for word, number in ran.counts.items())
            how = "took too long" if ran.exit_code is None else f"exit code {ran.exit_code}"
            yield f"Command {when}, on {ran.device}: {counts or how}."
