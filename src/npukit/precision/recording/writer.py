"""Writes rows beside the program that is recorded, so that its device need not wait for text and files.

A process that is killed in the milliseconds that this takes loses what was being written.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class BackgroundWriter:
    """Does one thing after the other in a thread; an error is raised by a later call.

    >>> writer = BackgroundWriter()
    >>> writer.do(lambda: print("written"))
    >>> writer.finish()
    written
    """

    def __init__(self) -> None:
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # threads do not live on there

    def _begin(self) -> None:
        self._thread: ThreadPoolExecutor | None = ThreadPoolExecutor(1, "npukit-precision")
        self._under_way: list[Future[None]] = []

    def do(self, work: Callable[[], None], now: bool = False) -> None:
        """Start on this as soon as the thread has time, and wait where it is behind; after `finish`, do it now."""
        if now or self._thread is None:
            self._wait(0)
            return work()
        self._wait(1)
        self._under_way.append(self._thread.submit(work))

    def finish(self) -> None:
        """Wait until all is done. Threads cannot be started when Python ends, as it does before the last rows come."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
            self._wait(0)

    def _wait(self, most: int) -> None:
        """Until so many are left."""
        while len(self._under_way) > most:
            self._under_way.pop(0).result()
