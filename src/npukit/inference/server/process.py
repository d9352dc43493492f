"""The process that serves: it is started on its device by `npukit serve`, with its options in a variable."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from npukit.errors import NpukitError
from npukit.inference.server.options import ServeOptions
from npukit.inference.server.start import check_packages, listen, serve
from npukit.launch.devices import is_simulated

SWITCH_INTERVAL = 0.0005  # seconds; Python's own is ten times as long
VARIABLE = "NPUKIT_SERVE"  # not an argument: there may be a key in it, and everyone can see arguments


def environment(options: ServeOptions) -> dict[str, str]:
    """The variables that tell a process what to serve."""
    return {VARIABLE: json.dumps(asdict(options), default=str)}


def main() -> None:
    """Load, listen, serve."""
    from pydantic import TypeAdapter

    options = TypeAdapter(ServeOptions).validate_json(os.environ.pop(VARIABLE))
    # While the engine's thread waits for the one that writes answers, the device has nothing to do.
    sys.setswitchinterval(SWITCH_INTERVAL)
    check_packages()
    listener = listen(options.server)
    from npukit.inference.embedding import is_embedding_model

    _say(f"loading {options.model}")
    app, device, longest, failure = _embeddings(options) if is_embedding_model(options.model) else _answers(options)

    def ready(address: str) -> None:
        names = ", ".join((*options.server.names, *options.adapters))
        where = f"{'simulated ' * is_simulated()}{device}"
        _say(f"serving {names} on {where} at {address} (API: {address}/v1, up to {longest} tokens)")

    serve(app, options.server, listener, ready, failure)


def _answers(options: ServeOptions) -> tuple[Any, Any, int, Callable[[], BaseException | None]]:
    """The application of a language model, its device, the longest sequence, and what made its engine fail, if any."""
    from npukit.inference.server.app import make_app
    from npukit.inference.server.model import load_serving

    serving = load_serving(options)
    return make_app(serving), serving.service.engine.device, serving.longest, lambda: serving.service.failure


def _embeddings(options: ServeOptions) -> tuple[Any, Any, int, Callable[[], BaseException | None]]:
    """The same of an embedding model."""
    from npukit.inference.embedding import load_embedder
    from npukit.inference.server.embeddings import make_embedding_app
    from npukit.inference.task import Wanted

    if options.adapters or options.merged:
        raise NpukitError(f"{options.model} is an embedding model: it is served without adapters.")
    wanted = Wanted(
        options.model,
        dtype=options.dtype,
        trust_remote_code=options.trust_remote_code,
        allow_pickles=options.allow_pickles,
    )
    embedder = load_embedder(wanted)
    return make_embedding_app(embedder, options.server), embedder.model.device, embedder.longest, lambda: None


def _say(text: str) -> None:
    print(f"npukit: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except NpukitError as error:
        _say(str(error))
        sys.exit(error.exit_code)
