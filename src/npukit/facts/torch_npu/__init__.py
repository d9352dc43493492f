"""Facts about torch_npu. What belongs to a version lies in a folder of that version; others use the nearest below."""

from __future__ import annotations

import functools
from pathlib import Path

from npukit.facts.versions import key

_FOLDER = Path(__file__).parent


@functools.cache
def versions(file: str = "apis.csv") -> tuple[str, ...]:
    """The versions of torch_npu that have this file of facts, oldest first.

    >>> versions()[0]
    '2.7'
    """
    return tuple(sorted((path.parent.name for path in _FOLDER.glob(f"*/{file}")), key=key))


@functools.cache
def file_for(version: str, file: str) -> Path | None:
    """The file of that version, or of the nearest version below that has it; None where all are newer.

    >>> file_for("2.13.0.post2", "names.json").parent.name
    '2.13'
    """
    minor = key(version)[:2]
    below = [known for known in versions(file) if key(known) <= minor]
    return _FOLDER / below[-1] / file if below else None
