"""An engine for the requests of one event loop. A thread runs it, or talks to the engine's process.

    async with Service(engine) as service:
        async for outputs in await service.submit(request): ...

Between two steps, the thread handles new requests, aborted ones and adapters. All outputs of a step go to the event
loop in one call. Each request has a queue of outputs, so that a slow reader does not delay the others; a request whose
queue is full is aborted.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from npukit.errors import NpukitError
from npukit.inference.engine.request import Output, Request
from npukit.inference.remote import RemoteEngine

T = TypeVar("T")
IDLE = 1.0  # seconds between two checks that an idle engine is alive
QUEUE = 4096  # outputs of one request that wait to be read


class OutputStream:
    """A running request. Iterating over it yields lists of its outputs."""

    def __init__(self, service: Service, queue: int) -> None:
        self.request_id = -1
        self._service = service
        self._queue = queue
        self._outputs: deque[Output] = deque()
        self._arrived = asyncio.Event()
        self._ended = False

    def cancel(self) -> None:
        """Abort the request; the outputs so far can still be read."""
        if not self._ended:
            self._ended = True
            self._service.cancel(self.request_id)
            self._arrived.set()

    def put(self, output: Output) -> None:
        """Add an output of the engine."""
        if self._ended:
            return
        self._outputs.append(output)
        if output.finish_reason:
            self._ended = True
        elif len(self._outputs) >= self._queue:
            self._outputs[-1] = Output(
                self.request_id, finish_reason="error", error=NpukitError("The client reads too slowly.")
            )
            self.cancel()
        self._arrived.set()

    async def __aiter__(self) -> AsyncIterator[list[Output]]:
        while True:
            if self._outputs:
                outputs = list(self._outputs)
                self._outputs.clear()
                yield outputs
            elif self._ended:
                return
            else:
                self._arrived.clear()
                await self._arrived.wait()


class Service:
    """Runs an engine; `submit`, `call` and `close` belong to the event loop that entered it."""

    def __init__(self, engine: Any, queue: int = QUEUE) -> None:
        self.failure: BaseException | None = None  # the error that ended the engine's thread
        self.engine = engine
        self._queue = queue
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._open: dict[int, OutputStream] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    async def __aenter__(self) -> Service:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._work.put(None)
        await asyncio.to_thread(self._thread.join)
        if isinstance(self.engine, RemoteEngine):
            await asyncio.to_thread(self.engine.close)

    async def submit(self, request: Request) -> OutputStream:
        """Submit a request; raises the NpukitError of `Engine.add_request`."""
        answering = OutputStream(self, self._queue)

        def add() -> None:
            answering.request_id = self.engine.add_request(request)
            self._open[answering.request_id] = answering

        try:
            await asyncio.shield(adding := asyncio.ensure_future(self.call(add)))
        except asyncio.CancelledError:  # the client disconnected meanwhile
            adding.add_done_callback(lambda _: answering.cancel())
            raise
        return answering

    async def call(self, function: Callable[[], T]) -> T:
        """What the function returns when it is called by the engine's thread, between two steps."""
        result: asyncio.Future[T] = self._loop.create_future()

        def work() -> None:
            try:
                if self.failure is not None:
                    raise RuntimeError("The engine has stopped.") from self.failure
                value = function()
            except Exception as error:
                self._call_in_loop(_fail, result, error)
            else:
                self._call_in_loop(_resolve, result, value)

        self._work.put(work)
        if self.failure is not None:  # the thread has ended
            self._refuse_work()
        return await result

    def cancel(self, request_id: int) -> None:
        """Abort a request; it gets no further outputs."""
        if self._open.pop(request_id, None) is not None:
            self._work.put(lambda: self.engine.abort_request(request_id))

    def _run(self) -> None:
        try:
            while self._take_work():
                if outputs := self.engine.step():
                    self._call_in_loop(self._hand_out, outputs)
        except BaseException as error:  # a bug of the engine, whose state cannot be trusted any more
            self.failure = error
            self._call_in_loop(self._fail_all, error)

    def _take_work(self) -> bool:
        """Do the queued work; if the engine is idle, wait for some."""
        try:
            while True:
                work = self._work.get(self.engine.is_idle, IDLE)
                if work is None:
                    return False
                work()
        except Empty:
            return True

    def _call_in_loop(self, function: Callable[..., None], *arguments: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _hand_out(self, outputs: list[Output]) -> None:
        for output in outputs:
            answering = (
                self._open.pop(output.request_id, None) if output.finish_reason else self._open.get(output.request_id)
            )
            if answering is not None:
                answering.put(output)

    def _fail_all(self, error: BaseException) -> None:
        for request_id in list(self._open):
            self._hand_out(
                [Output(request_id, finish_reason="error", error=RuntimeError(f"The engine failed: {error!r}"))]
            )
        self._refuse_work()

    def _refuse_work(self) -> None:
        while not self._work.empty():
            work = self._work.get_nowait()
            if work is not None:
                work()


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
