"""The engine's process, so that a server's work with text, JSON and connections does not delay the device.

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
    """A request with the id for its outputs; its grammar is sent as text."""

    request_id: int
    request: Request
    grammar: str | None


@dataclass(frozen=True)
class Cancel:
    """Abort a request."""

    request_id: int


@dataclass(frozen=True)
class MethodCall:
    """A call of a method of the engine between two steps; a Reply follows."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Ready:
    """The engine is ready, with these limits and device."""

    max_model_len: int
    num_cache_tokens: int
    vocab_size: int
    device: str


@dataclass(frozen=True)
class Failed:
    """The last message: why the engine ended, or could not be made."""

    error: Exception


@dataclass(frozen=True)
class Reply:
    """The result or error of a call."""

    value: Any = None
    error: Exception | None = None


def as_rows(outputs: list[Output]) -> list[tuple[Any, ...]]:
    """Outputs as plain tuples, which are pickled much faster."""
    return [
        (request_id, token and tuple(token), finish, [tuple(known) for known in prompt], error and _portable(error))
        for request_id, token, finish, prompt, error in outputs
    ]


def as_outputs(rows: list[tuple[Any, ...]]) -> list[Output]:
    """The outputs of received tuples.

    >>> as_outputs(as_rows([Output(3, Token(17))]))
    [Output(request_id=3, token=Token(id=17, logprob=None, top=()), finish_reason=None, prompt_logprobs=(), error=None)]
    """
    return [
        Output(request_id, token and Token(*token), finish, tuple(Token(*known) for known in prompt), error)
        for request_id, token, finish, prompt, error in rows
    ]


def _portable(error: Exception) -> Exception:
    """An error that can be pickled."""
    return error if isinstance(error, NpukitError) else RuntimeError(repr(error))


def run(connection: Connection, make: Callable[[], tuple[Any, Any]]) -> None:
    """Make the engine and its compiler of grammars, then run until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server gets them too, and finishes its answers first
        signal.signal(number, signal.SIG_IGN)
    try:
        engine, grammars = make()
        connection.send(Ready(engine.max_model_len, engine.num_cache_tokens, engine.vocab_size, str(engine.device)))
        _EngineLoop(connection, engine, grammars).run()
    except (BrokenPipeError, ConnectionResetError):
        return  # the server has died
    except Exception as error:
        with contextlib.suppress(OSError):
            connection.send(Failed(_portable(error)))
        if not isinstance(error, NpukitError):
            raise


class _EngineLoop:
    """Runs the engine and handles the server's messages between steps."""

    def __init__(self, connection: Connection, engine: Any, grammars: Callable[[], Any]) -> None:
        self._connection, self._engine, self._grammars = connection, engine, grammars
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._threads = ThreadPoolExecutor(2, "grammars")
        self._request_ids: dict[int, int] = {}  # the server's id by the engine's
        self._engine_ids: dict[int, int] = {}  # the engine's id by the server's
        self._compiling: set[int] = set()  # requests that wait for their grammar
        self._aborted: set[int] = set()  # requests of `_compiling` that were aborted
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
        """Grammars are compiled in other threads: one may take seconds, and later requests should not wait."""
        try:
            while True:
                message = pickle.loads(self._connection.recv_bytes())
                if isinstance(message, Add) and message.grammar is not None:
                    self._compiling.add(message.request_id)
                    self._threads.submit(self._compile, message)
                else:
                    self._inbox.put(message)
        except (EOFError, OSError):
            self._inbox.put(None)

    def _compile(self, message: Add) -> None:
        try:
            constraint = self._grammars().compile(message.grammar)
        except Exception as error:
            self._inbox.put(Output(message.request_id, finish_reason="error", error=error))
            return
        self._inbox.put(Add(message.request_id, replace(message.request, grammar=constraint), None))

    def _take(self, message: Any) -> None:
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, Cancel):
            if (own := self._engine_ids.get(message.request_id)) is not None:
                self._engine.abort_request(own)
            elif message.request_id in self._compiling:
                self._aborted.add(message.request_id)
        elif isinstance(message, Output):  # its grammar is invalid
            self._compiling.discard(message.request_id)
            self._aborted.discard(message.request_id)
            self._rows += as_rows([message])
        else:
            self._connection.send(self._called(message))

    def _add(self, message: Add) -> None:
        self._compiling.discard(message.request_id)
        if message.request_id in self._aborted:
            self._aborted.remove(message.request_id)
            self._rows += as_rows([Output(message.request_id, finish_reason="cancelled")])
            return
        try:
            own = self._engine.add_request(message.request)
        except Exception as error:  # the server has checked it, but an adapter may have been unloaded since
            self._rows += as_rows([Output(message.request_id, finish_reason="error", error=error)])
            return
        self._request_ids[own], self._engine_ids[message.request_id] = message.request_id, own

    def _called(self, call: MethodCall) -> Reply:
        try:
            return Reply(getattr(self._engine, call.method)(*call.arguments))
        except Exception as error:
            return Reply(error=_portable(error))

    def _send(self, outputs: list[Output]) -> None:
        rows, self._rows = self._rows, []
        for own, *rest in as_rows(outputs):
            request_id = self._request_ids[own]
            if rest[1] is not None:  # finished
                del self._request_ids[own], self._engine_ids[request_id]
            rows.append((request_id, *rest))
        self._connection.send_bytes(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL))
