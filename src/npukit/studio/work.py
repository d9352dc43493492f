"""Runs heavy work in other processes, so that the server stays small and responsive."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from npukit.children import die_with
from npukit.errors import NpukitError

_T = TypeVar("_T")
WORKERS = 2


class Workers:
    """Processes that are started when first needed."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def do(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """The result of a module's function; arguments and result must be plain data.

        >>> await Workers().do(analysis, Path("project"))
        """
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(WORKERS, context, die_with, (os.getpid(),))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        except BrokenProcessPool:
            self._pool = None
            raise NpukitError("The process that did this was killed, most likely because memory ran out.") from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
