"""Start a server and let its answers end when it is told to stop."""

from __future__ import annotations

import resource
import signal
import socket
from collections.abc import Callable
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.use import ServeOptions
from npukit.packages import require

KEEP_ALIVE = 30  # seconds without a request; clients give up theirs after 5, and must not use one that is just closed
FILES = 65536  # that the process may have open


def check_packages() -> None:
    """What a server needs."""
    require(
        "torch", "transformers", "fastapi", "httptools", "uvicorn", "prometheus_client", "llguidance", extra="serve"
    )


def listen(host: str, port: int) -> socket.socket:
    """The server's socket: whether the address can be had is known before a model is loaded."""
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


def serve(
    app: Any,
    options: ServeOptions,
    listener: socket.socket,
    ready: Callable[[str], None],
    failure: Callable[[], BaseException | None] = lambda: None,
) -> None:
    """Serve until a signal comes; then running answers have `options.drain` seconds to end.

    A server whose engine has died answers nobody any more: once `failure` returns its error, that is raised here.
    """
    import uvicorn

    from npukit.inference.server.protocol import LimitedProtocol

    _allow_many_connections()
    scheme = "https" if options.ssl_certfile else "http"
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        http=LimitedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(options.drain),
        ssl_keyfile=options.ssl_keyfile and str(options.ssl_keyfile),
        ssl_certfile=options.ssl_certfile and str(options.ssl_certfile),
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or failure() is not None

    # uvicorn hands a signal on when all is done; an end that was asked for is no failure.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    Server(config).run(sockets=[listener])
    if (error := failure()) is not None:
        raise NpukitError(f"The engine failed, and the server has ended: {error!r}", on_the_way=True) from error


def _allow_many_connections() -> None:
    """Each is a file to the system, whose first limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
