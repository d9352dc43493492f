"""The process that serves: `npukit serve` starts it on its device, with its options in a variable."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.server.start import check_packages, serve
from npukit.inference.start import taken_over
from npukit.launch.devices import is_simulated
from npukit.llm.config.use import Use
from npukit.report.terminal import say
from npukit.web.server import listen

SWITCH_INTERVAL = 0.0005  # seconds; Python's own is ten times as long


def main() -> None:
    """Load, listen, serve."""
    use = taken_over().use
    # The thread that receives the engine's tokens must not wait for the one that writes answers.
    sys.setswitchinterval(SWITCH_INTERVAL)
    check_packages()
    listener = listen(use.serve.host, use.serve.port)
    from npukit.inference.embedding import is_embedding_model

    say(f"loading {use.model.path}")
    app, device, longest, failure = _embeddings(use) if is_embedding_model(use.model.path) else _answers(use, listener)

    def ready(address: str) -> None:
        names = ", ".join((*use.serve.served_model_name, *use.named))
        where = f"{'simulated ' * is_simulated()}{device}"
        say(f"serving {names} on {where} at {address} (API: {address}/v1, up to {longest} tokens)")

    serve(app, use.serve, listener, ready, failure)


def _answers(use: Use, listener: socket.socket) -> tuple[Any, Any, int, Callable[[], BaseException | None]]:
    """The application of a language model, its device, the longest sequence, and what made its engine fail, if any."""
    from npukit.inference.server.app import make_app
    from npukit.inference.server.model import load_serving

    serving = load_serving(use, listener)
    engine = serving.service.engine
    say(f"the cache holds {engine.num_cache_tokens:,} tokens")
    return make_app(serving), engine.device, serving.max_model_len, lambda: serving.service.failure


def _embeddings(use: Use) -> tuple[Any, Any, int, Callable[[], BaseException | None]]:
    """The same of an embedding model."""
    from npukit.inference.embedding import load_embedder
    from npukit.inference.server.embeddings import make_embedding_app

    if use.adapters:
        raise NpukitError(f"{use.model.path} is an embedding model: it is served without adapters.")
    embedder = load_embedder(use)
    return make_embedding_app(embedder, use.serve), embedder.model.device, embedder.longest, lambda: None


if __name__ == "__main__":
    try:
        main()
    except NpukitError as error:
        say(str(error))
        sys.exit(error.exit_code)
