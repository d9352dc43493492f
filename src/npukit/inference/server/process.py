"""The process that serves: it is started on its device by `npukit serve`, with its options in a variable."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from npukit.errors import NpukitError
from npukit.inference.server.options import ServeOptions
from npukit.inference.server.start import check_packages, listen, serve
from npukit.launch.devices import is_simulated

VARIABLE = "NPUKIT_SERVE"  # not an argument: there may be a key in it, and everyone can see arguments


def environment(options: ServeOptions) -> dict[str, str]:
    """The variables that tell a process what to serve."""
    return {VARIABLE: json.dumps(asdict(options), default=str)}


def main() -> None:
    """Load, listen, serve."""
    from pydantic import TypeAdapter

    options = TypeAdapter(ServeOptions).validate_json(os.environ.pop(VARIABLE))
    check_packages()
    listener = listen(options.server)
    from npukit.inference.server.app import make_app
    from npukit.inference.server.model import load_serving

    _say(f"loading {options.model}")
    serving = load_serving(options)

    def ready(address: str) -> None:
        names = ", ".join((*options.server.names, *options.adapters))
        device = f"{'simulated ' * is_simulated()}{serving.service.engine.device}"
        _say(f"serving {names} on {device} at {address} (API: {address}/v1, up to {serving.longest} tokens)")

    serve(make_app(serving), options.server, listener, ready)


def _say(text: str) -> None:
    print(f"npukit: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except NpukitError as error:
        _say(str(error))
        sys.exit(2)
