"""An engine in a process of its own, used as if it were here (see npukit.inference.engine_process)."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from npukit.inference.engine.adapters import LoadedAdapter
from npukit.inference.engine.request import Output, Request, Stats, check_request
from npukit.inference.engine_process import Add, Cancel, Failed, MethodCall, Ready, Reply, as_outputs, run

PATIENCE = 0.001  # seconds that `step` waits for outputs before new requests are looked for
ENDING = 10  # seconds that the process has to end


class RemoteEngine:
    """What a Service needs of an engine. It belongs to one thread, but for `start` and `close`.

    >>> with RemoteEngine(lambda: (Engine(model), lambda: grammars)) as engine:
    ...     engine.wait_until_ready()
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]], listener: socket.socket | None = None) -> None:
        """Fork the process, which calls `make` for the engine and a maker of grammars.

        MethodCall it before torch has touched a device. The process does not keep the server's `listener` open.
        """
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_child, args=(self._connection, other, listener, make), name="engine")
        self._process.start()
        other.close()
        self.device = ""
        self.longest = self.words = 0
        self._adapters: set[str] = set()
        self._next_number = 0
        self._running: set[int] = set()
        self._outputs: list[Output] = []  # that came before the reply to a call

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(ENDING)
        if self._process.is_alive():  # in the middle of something that cannot be interrupted
            self._process.kill()
            self._process.join()

    def wait_until_ready(self) -> None:
        """Wait for the engine; what kept it from being made is raised here."""
        ready: Ready = self._receive()
        self.longest, self.words, self.device = ready.longest, ready.words, ready.device

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._running and not self._outputs

    def add(self, request: Request) -> int:
        """Take a request, as Engine.add does."""
        check_request(request, self.longest, self.words, self._adapters)
        number = self._next_number
        self._next_number += 1
        grammar = getattr(request.grammar, "grammar", None)
        self._send(Add(number, replace(request, grammar=None), grammar))
        self._running.add(number)
        return number

    def cancel(self, number: int) -> None:
        """Give up a request; its last output says so. One that has ended already is left alone."""
        if number in self._running:
            self._send(Cancel(number))

    def step(self) -> list[Output]:
        """The outputs that have come; none where the engine is busy for longer than a moment."""
        outputs, self._outputs = self._outputs, []
        if outputs or self._connection.poll(PATIENCE):
            while self._connection.poll(0):
                outputs += self._taken(self._receive())
        return outputs

    def stats(self) -> Stats:
        """How busy it is."""
        stats: Stats = self._call("stats")
        return stats

    def load_adapter(self, name: str, folder: Any) -> None:
        """Read a LoRA adapter that PEFT saved, and make it known under a name."""
        self._call("load_adapter", name, folder)
        self._adapters.add(name)

    def add_adapter(self, adapter: LoadedAdapter, replace: bool = False) -> None:
        """Make an adapter known under its name."""
        self._call("add_adapter", adapter, replace)
        self._adapters.add(adapter.name)

    def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that have it are answered to their end."""
        self._call("unload_adapter", name)
        self._adapters.discard(name)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._send(MethodCall(method, arguments))
        while not isinstance(reply := self._receive(), Reply):
            self._outputs += self._taken(reply)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _taken(self, rows: list[tuple[Any, ...]]) -> list[Output]:
        outputs = as_outputs(rows)
        self._running.difference_update(output.number for output in outputs if output.finish)
        return outputs

    def _send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise self._ended() from None

    def _receive(self) -> Any:
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(message, Failed):
            raise message.error
        return message

    def _ended(self) -> RuntimeError:
        self._process.join(ENDING)
        return RuntimeError(f"the engine's process ended with exit code {self._process.exitcode}")


def _child(
    parents: Connection, connection: Connection, listener: socket.socket | None, make: Callable[[], tuple[Any, Any]]
) -> None:
    parents.close()  # or the pipe would not end with the server
    if listener is not None:
        listener.close()
    run(connection, make)
