"""What npukit's servers share: the socket, the end after a signal, the name of the host, the size of bodies."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from npukit.errors import NpukitError

if TYPE_CHECKING:
    from starlette.types import Message, Receive
    from uvicorn import Config


def listen(host: str, port: int) -> socket.socket:
    """A server's socket: whether the address can be had is known before anything is loaded.

    >>> listen("127.0.0.1", 8000).getsockname()
    ('127.0.0.1', 8000)
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small packets at once (TCP_NODELAY) only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.set_inheritable(True)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise NpukitError(f"Cannot listen on {host}:{port} ({reason}): choose another --host or --port.") from error
    return listener


def run_until_signal(
    config: Config, listener: socket.socket, on_ready: Callable[[], None], ended: Callable[[], bool] = lambda: False
) -> None:
    """Serve until a signal comes, or `ended` says so; `on_ready` is called once the server can be reached."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            on_ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await super().shutdown(sockets)
            if self.force_exit:  # by a second Ctrl-C, after which uvicorn would not close the application
                await self.lifespan.shutdown()

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or ended()

    # uvicorn hands a signal on when all is done; an end that was asked for is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config).run(sockets=[listener])


def host_name(host: str) -> str:
    """The Host header without its port.

    >>> host_name("[::1]:8000"), host_name("localhost:8000")
    ('[::1]', 'localhost')
    """
    return host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]


def limited(receive: Receive, largest: int, error: Callable[[], Exception]) -> Receive:
    """Receive a body and raise the error once it is larger: not every request says how long it is."""
    received = 0

    async def receive_limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > largest:
            raise error()
        return message

    return receive_limited
