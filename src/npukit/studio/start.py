"""Start the studio."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace

from npukit.packages import require
from npukit.studio.options import StudioOptions, kept_token
from npukit.studio.runs import Runs
from npukit.web.server import listen, run_until_signal


def start(options: StudioOptions, on_ready: Callable[[str], None]) -> None:
    """Serve until a signal; `on_ready` gets the address when it can be opened. Runs continue without the studio."""
    require("starlette", "uvicorn", extra="studio")
    import uvicorn

    from npukit.studio.app import make_app

    Runs(options.folders.state)
    os.chdir(options.folders.workspace)  # paths in configurations are relative to it
    options = replace(options, token=kept_token(options.folders.state))
    listener = listen(options.host, options.port)
    host, port = listener.getsockname()[:2]
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host

    config = uvicorn.Config(
        make_app(options), log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=1
    )
    run_until_signal(config, listener, lambda: on_ready(f"http://{shown}:{port}/?token={options.token}"))
