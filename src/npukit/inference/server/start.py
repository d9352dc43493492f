"""Start a server and let its answers end when it is told to stop."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.use import ServeOptions
from npukit.packages import require
from npukit.web.server import run_until_signal

KEEP_ALIVE = 30  # seconds without a request; clients give up theirs after 5, and must not use one that is just closed
FILES = 65536  # that the process may have open


def check_packages() -> None:
    """What a server needs."""
    require(
        "torch", "transformers", "fastapi", "httptools", "uvicorn", "prometheus_client", "llguidance", extra="serve"
    )


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

    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    run_until_signal(config, listener, lambda: ready(address), lambda: failure() is not None)
    if (error := failure()) is not None:
        raise NpukitError(f"The engine failed, and the server has ended: {error!r}", on_the_way=True) from error


def _allow_many_connections() -> None:
    """Each is a file to the system, whose first limit is often 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
