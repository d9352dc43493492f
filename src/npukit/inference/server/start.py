"""Start a server and let its answers end when it is told to stop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.server.options import ServerOptions
from npukit.packages import require


def check_packages() -> None:
    """What a server needs."""
    require("torch", "transformers", "fastapi", "uvicorn", "prometheus_client", "llguidance", extra="serve")


def listen(options: ServerOptions) -> socket.socket:
    """The server's socket: whether the address can be had is known before a model is loaded."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.set_inheritable(True)
    except OSError as error:
        listener.close()
        address, reason = f"{options.host}:{options.port}", error.strerror or error
        raise NpukitError(f"Cannot listen on {address} ({reason}): choose another --host or --port.") from error
    return listener


def serve(app: Any, options: ServerOptions, listener: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; then running answers have `options.drain` seconds to end."""
    import uvicorn

    scheme = "https" if options.tls_certificate else "http"
    host, port = listener.getsockname()[:2]
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(options.drain),
        ssl_keyfile=options.tls_key and str(options.tls_key),
        ssl_certfile=options.tls_certificate and str(options.tls_certificate),
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")

    # uvicorn hands a signal on when all is done; an end that was asked for is no failure.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: None)
    Server(config).run(sockets=[listener])
