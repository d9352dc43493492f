"""Runs a script or module as one process, or as several ranks on this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from npukit.launch.commands import is_shell_script
from npukit.launch.failure import SIGNALS
from npukit.launch.rank_table import TABLE, why_unusable
from npukit.launch.script import AUTOLOAD, AUTOLOAD_LATER, LAUNCHER
from npukit.packages import require
from npukit.report.result import is_awaited
from npukit.report.terminal import say


def run(command: Sequence[str], environment: Mapping[str, str], ranks: int = 1, auto: bool = False) -> NoReturn:
    """Run `command` to its end, with its exit code; with several ranks become torchrun.

    A shell script is run by bash. With `auto` CUDA code runs on an NPU. A failure ends in its explanation.

    >>> run(["train.py", "--epochs", "3"], os.environ, ranks=2)
    """
    environment = dict(environment)
    if is_shell_script(Path(command[0])):  # it starts its ranks itself
        watch(["bash", *command], environment)
    script = script_arguments(command, auto)
    if "TORCHELASTIC_RUN_ID" in environment:  # this is a rank, which its launcher watches
        become([sys.executable, *script], environment)
    if ranks == 1:
        watch([sys.executable, *script], environment)
    spare_launcher(environment, ranks)
    become([*AGENT, "--standalone", "--nproc-per-node", str(ranks), *script], environment)


# The launcher must not import the user's modules in place of Python's or torch's.
SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []
AGENT = [sys.executable, *SAFE_PATH, "-m", "npukit.launch.agent"]


def script_arguments(command: Sequence[str], auto: bool) -> list[str]:
    """Python's arguments for `command`."""
    return ["-m", "npukit.launch.script", *(["--auto"] if auto else []), *command]


def tied(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment that makes a process of `script_arguments`, or the agent, end with this process.

    >>> subprocess.run([sys.executable, *script_arguments(["train.py"], auto=False)], env=tied(os.environ))
    """
    return {**environment, LAUNCHER: str(os.getpid())}


def own_first(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a project imports its own modules, not an installed copy's.

    >>> subprocess.run(["pytest"], cwd=folder, env=own_first(folder, os.environ))
    """
    path = (str(folder), str(folder / "src"), environment.get("PYTHONPATH"))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def spare_launcher(environment: dict[str, str], ranks: int) -> None:
    """The environment of the launcher: CPUs divided among ranks, no unusable rank table, and no device.

    The launcher needs no device and starts seconds faster without one.
    """
    require("torch", extra="sim")  # torchrun starts the ranks
    if why := why_unusable(environment):
        say(f"RANK_TABLE_FILE={environment.pop(TABLE)} is not used, since {why}.")
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    if AUTOLOAD not in environment:
        environment[AUTOLOAD] = "0"
        environment[AUTOLOAD_LATER] = "1"


_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def watch(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a process as if it were this one: pass on signals, return its exit code, and end it with this process.

    Python reports its own errors; a process that is killed or crashes in native code is explained here.
    """
    early: list[int] = []  # what arrives before there is a process to pass it on to
    passed_on = [number for number in _PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]  # as under nohup
    for number in (signal.SIGINT, *passed_on):
        signal.signal(number, lambda number, _: early.append(number))
    process = subprocess.Popen(argv, env=tied(environment))
    for number in passed_on:
        signal.signal(number, lambda number, _: process.send_signal(number))
    if _in_foreground():  # the terminal sends SIGINT to the process too, which decides how to end
        signal.signal(signal.SIGINT, lambda *_: None)
    else:
        signal.signal(signal.SIGINT, lambda number, _: process.send_signal(number))
    for received in early:
        process.send_signal(received)
    code = process.wait()
    if code < 0:
        name = signal.Signals(-code).name
        if why := SIGNALS.get(name):
            say(f"the process was killed by {name}. {why}")
        sys.exit(128 - code)
    sys.exit(code)


def _in_foreground() -> bool:
    """Whether Ctrl-C in a terminal reaches this process and those that it starts."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def become(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process, or stay and watch the new one if its end must be reported."""
    if is_awaited():
        watch(argv, environment)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)
