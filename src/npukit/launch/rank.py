"""Become the command of one rank, bound to die with its launcher.

torchrun ends its ranks when it is told to end, but a launcher that is killed outright would leave them behind.
Run as `python rank.py LAUNCHER_PID COMMAND...`; it imports nothing but what it needs, because every rank waits for it.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    launcher, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(launcher):
        sys.exit("npukit: the launcher is gone.")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
