"""Writes rows beside the program that is recorded, so that its device need not wait for text and files."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Writer:
    """Does one thing after the other in a thread; an error is raised by the next call.

    >>> writer = Writer()
    >>> writer.do(lambda: print("written"))
    >>> writer.finish()
    written
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)  # threads do not live on there

    def _forget(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._under_way: list[Future[None]] = []

    def do(self, work: Callable[[], None]) -> None:
        """Start on this, or wait until what came before is done."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "npukit-precision")
        if len(self._under_way) > 1:
            self._under_way.pop(0).result()
        self._under_way.append(self._thread.submit(work))

    def finish(self) -> None:
        """Wait until all is done, and end the thread."""
        try:
            while self._under_way:
                self._under_way.pop(0).result()
        finally:
            if self._thread is not None:
                self._thread.shutdown()
                self._thread = None
