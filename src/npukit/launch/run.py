"""Run a script or module: in this very process, or as several ranks under torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from npukit.launch import rank

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def run(command: Sequence[str], environment: Mapping[str, str], ranks: int = 1) -> NoReturn:
    """Become `command`, so that its signals and its exit code are the caller's; with several ranks become torchrun.

    >>> run(["train.py", "--epochs", "3"], os.environ, ranks=2)
    """
    argv = [sys.executable, *command]
    environment = dict(environment)
    if ranks > 1:
        argv = torchrun(argv, environment, ranks)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, argv, environment)


def torchrun(argv: list[str], environment: dict[str, str], ranks: int) -> list[str]:
    """The command that starts `ranks` processes of `argv` on this machine; changes `environment` where that helps."""
    environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    if AUTOLOAD not in environment:
        # The launcher itself needs no device: it starts seconds faster without one.
        environment[AUTOLOAD] = "0"
        argv = ["/usr/bin/env", "-u", AUTOLOAD, *argv]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, "--no-python", sys.executable, "-S", rank.__file__, str(os.getpid()), *argv]
