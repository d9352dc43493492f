"""The libraries that a wheel of npukit for one architecture brings along, so that nothing need be compiled.

`make wheels` builds them. Their folders are named by everything that decides about their content: sources that were
edited since are compiled.
"""

from __future__ import annotations

import sys
from pathlib import Path

from npukit.simulate.versions import release

FOLDER = Path(__file__).resolve().parent / "prebuilt"


def runtime(key: str, folder: Path = FOLDER) -> Path:
    """Where the simulated CANN's libraries would be; they serve every version of torch."""
    return folder / "runtime" / key


def operators(torch_version: str, key: str, python: str = sys.implementation.cache_tag, folder: Path = FOLDER) -> Path:
    """Where the operators for this torch and this Python would be.

    >>> operators("2.13.0+cpu", "1b903da96b14", "cpython-311").name
    '2.13.0-cpython-311-1b903da96b14'
    """
    return folder / "operators" / f"{release(torch_version)}-{python}-{key}"
