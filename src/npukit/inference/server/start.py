"""Starts a server, and finishes its answers when it is stopped."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.use import ServeOptions
from npukit.packages import require
from npukit.web.server import run_until_signal

KEEP_ALIVE = 30  # seconds; longer than clients' 5, so that none sends on a connection that is just being closed
FILES = 65536  # that the process may have open


def check_packages() -> None:
    """Check that the packages of a server are installed."""
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
    """Serve until a signal; then running answers have `options.drain` seconds to finish.

    If the engine has died, `failure` returns its error, which is raised here.
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
        raise NpukitError(f"The engine failed, and the server has stopped: {error!r}", on_the_way=True) from error


def _allow_many_connections() -> None:
    """Raise the limit of open files, which is often 1,024: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
