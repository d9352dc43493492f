"""Record where other threads than the training loop's run Python: one that prepares batches, or autograd's on a device.

Python runs in one thread at a time, so that the training loop waits for them. `sys.settrace` does not reach threads
that have begun before, or that C++ has started. They are looked at every few milliseconds instead.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from npukit.performance.recording.users_code import is_users, line_name, source_of

EVERY = 0.02  # seconds between two looks, each of which takes its turn, too


class ThreadWatcher(threading.Thread):
    """Notes the user's lines at which other threads are running.

    >>> watcher = ThreadWatcher()
    >>> watcher.start()
    >>> watcher.stop()
    >>> watcher.as_data()["elsewhere"]
    """

    def __init__(self) -> None:
        super().__init__(daemon=True, name="npukit-threads")
        self._loop = threading.get_ident()  # the thread that is traced
        self._over = threading.Event()
        self._before: dict[int, tuple[int, int]] = {}  # the frame and the instruction of each thread at the last look
        self._seen: list[tuple[int, int, str, int]] = []

    def run(self) -> None:
        began = time.time_ns()
        while not self._over.wait(EVERY):
            now = time.time_ns()
            self._look(began, now)
            began = now

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()

    def _look(self, began: int, now: int) -> None:
        """Note who has moved since the last look; a thread that stays where it was waits for something."""
        for thread, frame in sys._current_frames().items():
            at = id(frame), frame.f_lasti
            if thread in (self._loop, self.ident) or self._before.get(thread) == at:
                continue
            self._before[thread] = at
            if is_users(frame.f_code.co_filename):
                self._seen.append((began, now, frame.f_code.co_filename, frame.f_lineno))

    def as_data(self) -> dict[str, Any]:
        """From when until when another thread ran at which line, with its text."""
        return {
            "elsewhere": [
                (began, end, line_name(file, line), source_of(file).text(line)) for began, end, file, line in self._seen
            ]
        }
