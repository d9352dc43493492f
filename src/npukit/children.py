"""Processes that end with the one that started them, however that one ends."""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent is gone; one that is gone already ends it now.

    >>> ProcessPoolExecutor(2, initializer=die_with, initargs=(os.getpid(),))
    """
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("npukit: the process that started this one has ended.")
