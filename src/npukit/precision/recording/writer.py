"""Write rows in a background thread, so that the recorded program's device does not wait for text and files.

If the process is killed within the milliseconds that a write takes, that write is lost.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Runs jobs one after the other in a thread. An error in one is raised by a later call.

    >>> writer = BackgroundWriter()
    >>> writer.do(lambda: print("written"))
    >>> writer.finish()
    written
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not survive a fork

    def _begin(self) -> None:
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "npukit-precision")
        self._under_way: list[Future[None]] = []

    def do(self, work: Callable[[], None], now: bool = False) -> None:
        """Queue a job, and wait if the thread has fallen behind. After `finish`, jobs run immediately."""
        if now or self._thread is None:
            self._wait(0)
            return work()
        self._wait(1)
        self._under_way.append(self._thread.submit(work))

    def finish(self) -> None:
        """Wait for all jobs. Threads cannot be started while Python exits, which is before the last rows come."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
            self._wait(0)

    def _wait(self, most: int) -> None:
        """Wait until at most this many jobs are left."""
        while len(self._under_way) > most:
            self._under_way.pop(0).result()
