"""Threads for what would hold up the event loop: tokenising, chat templates, grammars."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
LARGE = 64 * 2**10  # bytes of a request; what is smaller never waits for what is larger


class Lanes:
    """Two threads for small requests, one for large ones, and some for images, which are fetched and decoded.

    >>> ids = await Lanes().run(lambda: tokenizer.encode(text), size=len(text))
    """

    def __init__(self) -> None:
        self._small = ThreadPoolExecutor(2, thread_name_prefix="small-requests")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large-requests")
        self._pictures = ThreadPoolExecutor(8, thread_name_prefix="pictures")  # mostly outside of Python, or waiting

    async def run(self, function: Callable[[], T], size: int) -> T:
        """What the function returns; `size` is that of the request in bytes."""
        lane = self._small if size < LARGE else self._large
        return await asyncio.get_running_loop().run_in_executor(lane, function)

    async def run_with_pictures(self, function: Callable[[], T]) -> T:
        """What the function returns, for a request that has images."""
        return await asyncio.get_running_loop().run_in_executor(self._pictures, function)
