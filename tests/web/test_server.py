"""npukit's servers end in order, however impatient the user is."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from uvicorn import Config

from npukit.web.server import listen, run_until_signal


@pytest.mark.parametrize("times", [1, 2])
def test_every_ctrl_c_closes_the_application(times: int) -> None:
    closed = []

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        closed.append(True)

    def interrupt() -> None:
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run_until_signal(Config(Starlette(lifespan=lifespan)), listen("127.0.0.1", 0), interrupt)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert closed == [True]
