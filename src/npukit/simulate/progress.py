"""Show on stderr what the user is waiting for."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from npukit.report.language import translated
from npukit.report.terminal import console, say


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Show `name` while the block runs: a spinner on a terminal, otherwise one line before and the time after."""
    began, name = time.monotonic(), translated(name)
    if sys.stderr.isatty():
        with console(sys.stderr).status(f"{name} …"):
            yield
    else:
        say(f"{name} …")
        yield
    say(f"{name}: {time.monotonic() - began:.0f} s")
