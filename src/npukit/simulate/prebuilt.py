"""The prebuilt libraries in an npukit wheel for one architecture, which make compiling unnecessary.

`make wheels` builds them. Their folders are named by a hash of everything that determines their content, so edited
sources are compiled again.
"""

from __future__ import annotations

import sys
from pathlib import Path

from npukit.simulate.versions import release

FOLDER = Path(__file__).resolve().parent / "prebuilt"


def runtime(key: str, folder: Path = FOLDER) -> Path:
    """The folder for the simulated CANN's libraries, which serve every version of torch."""
    return folder / "runtime" / key


def operators(torch_version: str, key: str, python: str = sys.implementation.cache_tag, folder: Path = FOLDER) -> Path:
    """The folder for the operators for this torch and this Python.

    >>> operators("2.13.0+cpu", "1b903da96b14", "cpython-311").name
    '2.13.0-cpython-311-1b903da96b14'
    """
    return folder / "operators" / f"{release(torch_version)}-{python}-{key}"
