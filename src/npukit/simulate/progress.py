"""Say on stderr what the user is waiting for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from npukit.report.terminal import console


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Show `name` while the block runs: a spinner on a terminal, one line before and the time after elsewhere."""
    began = time.monotonic()
    if sys.stderr.isatty():
        with console(sys.stderr).status(f"{name} …"):
            yield
    else:
        say(f"{name} …")
        yield
    say(f"{name}: {time.monotonic() - began:.0f} s")


def say(sentence: str) -> None:
    """One line on stderr, marked as npukit's own among the output of whatever is being run."""
    print(f"npukit: {sentence}", file=sys.stderr, flush=True)
