"""SIGTERM and SIGINT end a run after the step, with a checkpoint; a second signal ends it at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

# Ctrl-C reaches a rank twice: from the terminal and from torchrun.
_SAME_SIGNAL_SECONDS = 1.0


class StopSignals:
    """A context in which the first signal only sets `requested`, which the loop checks after every step.

    >>> with StopSignals() as stop:
    ...     for batch in batches:
    ...         train(batch)
    ...         if stop.requested:
    ...             break
    """

    def __init__(self, announce: bool = True) -> None:
        self.number = 0  # of the first signal
        self._announce = announce
        self._at = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers only there
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def requested(self) -> bool:
        return self.number > 0

    def _received(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if not self.requested:
            self.number, self._at = number, now
            if self._announce:  # do not promise a checkpoint: the signal may come because another rank has died
                text = f"\n{signal.Signals(number).name}: stopping after this step; send it again to stop at once.\n"
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, text.encode())  # print may be busy
        elif now - self._at > _SAME_SIGNAL_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
