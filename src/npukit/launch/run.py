"""Run a script or module: as one process, or as several ranks of this machine."""

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
    if is_shell_script(Path(command[0])):  # it starts its ranks itself, on the devices that it is given
        watch(["bash", *command], environment)
    script = script_arguments(command, auto)
    if "TORCHELASTIC_RUN_ID" in environment:  # a rank already: its launcher watches it
        become([sys.executable, *script], environment)
    if ranks == 1:
        watch([sys.executable, *script], environment)
    spare_launcher(environment, ranks)
    become([*AGENT, "--standalone", "--nproc-per-node", str(ranks), *script], environment)


# The launcher must not take the user's modules for Python's or torch's own.
SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []
AGENT = [sys.executable, *SAFE_PATH, "-m", "npukit.launch.agent"]


def script_arguments(command: Sequence[str], auto: bool) -> list[str]:
    """What Python is given to run `command`."""
    return ["-m", "npukit.launch.script", *(["--auto"] if auto else []), *command]


def tied(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with which a process of `script_arguments`, or the agent, ends when this process does.

    >>> subprocess.run([sys.executable, *script_arguments(["train.py"], auto=False)], env=tied(os.environ))
    """
    return {**environment, LAUNCHER: str(os.getpid())}


def own_first(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which a project imports its own modules, not those of another copy that is installed.

    >>> subprocess.run(["pytest"], cwd=folder, env=own_first(folder, os.environ))
    """
    path = (str(folder), str(folder / "src"), environment.get("PYTHONPATH"))
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def spare_launcher(environment: dict[str, str], ranks: int) -> None:
    """Share the CPUs out between ranks, leave out a rank table that HCCL would stumble over, and start faster.

    The launcher needs no device, and starts seconds faster without.
    """
    require("torch", extra="sim")  # torchrun starts the ranks
    if why := why_unusable(environment):
        say(f"RANK_TABLE_FILE={environment.pop(TABLE)} is not used, since {why}.")
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    if AUTOLOAD not in environment:
        environment[AUTOLOAD] = "0"
        environment[AUTOLOAD_LATER] = "1"


def watch(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a process as if it were this one: signals go to it, its exit code comes back, and it dies with us.

    Python tells its own errors; of a process that is killed, or crashes in native code, nobody else could tell why.
    """
    signal.signal(signal.SIGINT, lambda *_: None)  # how to end is the process's affair
    process = subprocess.Popen(argv, env=tied(environment))
    if not _in_foreground():  # else the terminal tells the process, too
        signal.signal(signal.SIGINT, lambda number, _: process.send_signal(number))
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: process.send_signal(number))
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
    """Replace this process; where its end is awaited, stay and watch the other one."""
    if is_awaited():
        watch(argv, environment)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)
