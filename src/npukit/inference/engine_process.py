"""The engine's own process. Nothing that a server does with text, JSON or connections holds up the device.

The server forks it before anything is loaded, and talks to it through a pipe (see npukit.inference.remote). It ends
when the pipe does, however the server ended.
"""

from __future__ import annotations

import contextlib
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.engine.request import Output, Request, Token


@dataclass(frozen=True)
class Add:
    """A request with the number that its outputs are to have; its grammar travels as text."""

    number: int
    request: Request
    grammar: str | None


@dataclass(frozen=True)
class Cancel:
    """Give up a request."""

    number: int


@dataclass(frozen=True)
class MethodCall:
    """A method of the engine to be called between two steps; a Reply follows."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Ready:
    """The engine is there: its longest sequence, its vocabulary and its device."""

    longest: int
    words: int
    device: str


@dataclass(frozen=True)
class Failed:
    """The last message: what ended the engine, or kept it from being made."""

    error: Exception


@dataclass(frozen=True)
class Reply:
    """What a call returned or raised."""

    value: Any = None
    error: Exception | None = None


def as_rows(outputs: list[Output]) -> list[tuple[Any, ...]]:
    """Outputs to be sent: plain tuples are pickled much faster."""
    return [
        (number, token and tuple(token), finish, [tuple(known) for known in prompt], error and _portable(error))
        for number, token, finish, prompt, error in outputs
    ]


def as_outputs(rows: list[tuple[Any, ...]]) -> list[Output]:
    """Outputs that were received.

    >>> as_outputs(as_rows([Output(3, Token(17))]))
    [Output(number=3, token=Token(id=17, logprob=None, top=()), finish=None, prompt=(), error=None)]
    """
    return [
        Output(number, token and Token(*token), finish, tuple(Token(*known) for known in prompt), error)
        for number, token, finish, prompt, error in rows
    ]


def _portable(error: Exception) -> Exception:
    """An error that can be pickled."""
    return error if isinstance(error, NpukitError) else RuntimeError(repr(error))


def run(connection: Connection, make: Callable[[], tuple[Any, Any]]) -> None:
    """Make the engine, and a function that makes its grammars, then work until the pipe ends."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server gets them too, and lets answers end first
        signal.signal(number, signal.SIG_IGN)
    try:
        engine, grammars = make()
        connection.send(Ready(engine.longest, engine.words, str(engine.device)))
        _EngineLoop(connection, engine, grammars).run()
    except (BrokenPipeError, ConnectionResetError):
        return  # the server has gone
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(Failed(_portable(error)))
        if not isinstance(error, NpukitError):
            raise


class _EngineLoop:
    """Takes what the server sent, between two steps."""

    def __init__(self, connection: Connection, engine: Any, grammars: Callable[[], Any]) -> None:
        self._connection, self._engine, self._grammars = connection, engine, grammars
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._threads = ThreadPoolExecutor(2, "grammars")
        self._numbers: dict[int, int] = {}  # the server's, by the engine's
        self._own_numbers: dict[int, int] = {}  # the other way round
        self._compiling: set[int] = set()  # requests that wait for their grammar
        self._given_up: set[int] = set()  # some of those
        self._rows: list[tuple[Any, ...]] = []

    def run(self) -> None:
        Thread(target=self._receive, name="receive", daemon=True).start()
        while True:
            while self._engine.is_idle or not self._inbox.empty():
                if (message := self._inbox.get()) is None:
                    return
                self._take(message)
                if self._rows:
                    self._send([])
            self._send(self._engine.step())

    def _receive(self) -> None:
        """A grammar is compiled aside: it may take seconds, and requests behind it must not wait."""
        try:
            while True:
                message = pickle.loads(self._connection.recv_bytes())
                if isinstance(message, Add) and message.grammar is not None:
                    self._compiling.add(message.number)
                    self._threads.submit(self._compile, message)
                else:
                    self._inbox.put(message)
        except (EOFError, OSError):
            self._inbox.put(None)

    def _compile(self, message: Add) -> None:
        try:
            constraint = self._grammars().compile(message.grammar)
        except Exception as error:
            self._inbox.put(Output(message.number, finish="error", error=error))
            return
        self._inbox.put(Add(message.number, replace(message.request, grammar=constraint), None))

    def _take(self, message: Any) -> None:
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Cancel):
            if (own := self._own_numbers.get(message.number)) is not None:
                self._engine.cancel(own)
            elif message.number in self._compiling:
                self._given_up.add(message.number)
        elif isinstance(message, Output):  # a grammar that cannot be used
            self._compiling.discard(message.number)
            self._given_up.discard(message.number)
            self._rows += as_rows([message])
        else:
            self._connection.send(self._called(message))

    def _add(self, message: Add) -> None:
        self._compiling.discard(message.number)
        if message.number in self._given_up:
            self._given_up.remove(message.number)
            self._rows += as_rows([Output(message.number, finish="cancelled")])
            return
        try:
            own = self._engine.add(message.request)
        except Exception as error:  # the server has checked it; an adapter may have gone since
            self._rows += as_rows([Output(message.number, finish="error", error=error)])
            return
        self._numbers[own], self._own_numbers[message.number] = message.number, own

    def _called(self, call: MethodCall) -> Reply:
        try:
            return Reply(getattr(self._engine, call.method)(*call.arguments))
        except Exception as error:
            return Reply(error=_portable(error))

    def _send(self, outputs: list[Output]) -> None:
        rows, self._rows = self._rows, []
        for own, *rest in as_rows(outputs):
            number = self._numbers[own]
            if rest[1] is not None:  # finished
                del self._numbers[own], self._own_numbers[number]
            rows.append((number, *rest))
        self._connection.send_bytes(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
