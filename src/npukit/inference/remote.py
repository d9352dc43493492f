"""An engine in another process, with the interface of Engine (see npukit.inference.engine_process)."""

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

PATIENCE = 0.001  # seconds that `step` waits for outputs
ENDING = 10  # seconds that the process has to end


class RemoteEngine:
    """The part of Engine that a Service needs. It belongs to one thread, except for `start` and `close`.

    >>> with RemoteEngine(lambda: (Engine(model), lambda: grammars)) as engine:
    ...     engine.wait_until_ready()
    """

    def __init__(self, make: Callable[[], tuple[Any, Any]], listener: socket.socket | None = None) -> None:
        """Fork the process, which calls `make` for the engine and its compiler of grammars.

        Call it before torch has touched a device. The process does not keep the server's `listener` open.
        """
        self._connection, other = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_child, args=(self._connection, other, listener, make), name="engine")
        self._process.start()
        other.close()
        self.device = ""
        self.max_model_len = self.num_cache_tokens = self.vocab_size = 0
        self._adapters: set[str] = set()
        self._next_request_id = 0
        self._running: set[int] = set()
        self._outputs: list[Output] = []  # received before the reply to a call

    def __enter__(self) -> RemoteEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(ENDING)
        if self._process.is_alive():  # it is in a call that cannot be interrupted
            self._process.kill()
            self._process.join()

    def wait_until_ready(self) -> None:
        """Wait for the engine; raises the error that kept it from being made."""
        ready: Ready = self._receive()
        self.max_model_len, self.num_cache_tokens = ready.max_model_len, ready.num_cache_tokens
        self.vocab_size, self.device = ready.vocab_size, ready.device

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._running and not self._outputs

    def add_request(self, request: Request) -> int:
        """Add a request, as Engine.add_request does."""
        check_request(request, self.max_model_len, self.vocab_size, self._adapters)
        request_id = self._next_request_id
        self._next_request_id += 1
        grammar = getattr(request.grammar, "grammar", None)
        self._send(Add(request_id, replace(request, grammar=None), grammar))
        self._running.add(request_id)
        return request_id

    def abort_request(self, request_id: int) -> None:
        """Abort a request; its last output says so. Does nothing if it has finished."""
        if request_id in self._running:
            self._send(Cancel(request_id))

    def step(self) -> list[Output]:
        """The outputs that have arrived; an empty list if there are none within `PATIENCE`."""
        outputs, self._outputs = self._outputs, []
        if outputs or self._connection.poll(PATIENCE):
            while self._connection.poll(0):
                outputs += self._receive_outputs(self._receive())
        return outputs

    def stats(self) -> Stats:
        """Figures of its load and its work so far."""
        stats: Stats = self._call("stats")
        return stats

    def load_adapter(self, name: str, folder: Any) -> None:
        """Load a LoRA adapter that PEFT saved under a new name."""
        self._call("load_adapter", name, folder)
        self._adapters.add(name)

    def add_adapter(self, adapter: LoadedAdapter, replace: bool = False) -> None:
        """Add an adapter under its name."""
        self._call("add_adapter", adapter, replace)
        self._adapters.add(adapter.name)

    def unload_adapter(self, name: str) -> None:
        """Remove an adapter; requests that use it are finished."""
        self._call("unload_adapter", name)
        self._adapters.discard(name)

    def _call(self, method: str, *arguments: Any) -> Any:
        self._send(MethodCall(method, arguments))
        while not isinstance(reply := self._receive(), Reply):
            self._outputs += self._receive_outputs(reply)
        if reply.error is not None:
            raise reply.error
        return reply.value

    def _receive_outputs(self, rows: list[tuple[Any, ...]]) -> list[Output]:
        outputs = as_outputs(rows)
        self._running.difference_update(output.request_id for output in outputs if output.finish_reason)
        return outputs

    def _send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        except OSError:
            raise self._failure() from None

    def _receive(self) -> Any:
        try:
            message = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._failure() from None
        if isinstance(message, Failed):
            raise message.error
        return message

    def _failure(self) -> RuntimeError:
        self._process.join(ENDING)
        return RuntimeError(f"the engine's process ended with exit code {self._process.exitcode}")


def _child(
    parents: Connection, connection: Connection, listener: socket.socket | None, make: Callable[[], tuple[Any, Any]]
) -> None:
    parents.close()  # otherwise the pipe would stay open without the server
    if listener is not None:
        listener.close()
    run(connection, make)
