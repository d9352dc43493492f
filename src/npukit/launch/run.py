"""Run a script or module: in this very process, or as several ranks of this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from npukit.errors import NpukitError
from npukit.launch.script import AUTOLOAD, AUTOLOAD_LATER


def run(command: Sequence[str], environment: Mapping[str, str], ranks: int = 1, auto: bool = False) -> NoReturn:
    """Become `command`, so that its signals and its exit code are the caller's; with several ranks become torchrun.

    With `auto` CUDA code runs on an NPU. A failure ends in its explanation.

    >>> run(["train.py", "--epochs", "3"], os.environ, ranks=2)
    """
    environment = dict(environment)
    script = script_arguments(command, auto)
    if ranks == 1:
        become([sys.executable, *script], environment)
    spare_launcher(environment, ranks)
    become([*AGENT, "--standalone", "--nproc-per-node", str(ranks), *script], environment)


# The launcher must not take the user's modules for Python's or torch's own.
SAFE_PATH = ["-P"] if sys.version_info >= (3, 11) else []
AGENT = [sys.executable, *SAFE_PATH, "-m", "npukit.launch.agent"]


def script_arguments(command: Sequence[str], auto: bool) -> list[str]:
    """What Python is given to run `command`."""
    return ["-m", "npukit.launch.script", *(["--auto"] if auto else []), *command]


def spare_launcher(environment: dict[str, str], ranks: int) -> None:
    """Share the CPUs out between ranks; and let the launcher, which needs no device, start seconds faster without."""
    if importlib.util.find_spec("torch") is None:
        raise NpukitError("Several ranks are started by torchrun, and torch is not installed here: install it first.")
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    if AUTOLOAD not in environment:
        environment[AUTOLOAD] = "0"
        environment[AUTOLOAD_LATER] = "1"


def become(argv: list[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(argv[0], argv, environment)
