"""Names that releases of torch no longer have, and what to write instead."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npukit.facts.data import load_rows
from npukit.facts.versions import key


@dataclass(frozen=True)
class RemovedName:
    """A name; the comments at the head of removed_names.yaml say what each field means."""

    name: str
    missing_from: str
    instead: str


@functools.cache
def removed_names() -> dict[str, RemovedName]:
    """Every name that is known to be gone, by itself."""
    return {removed.name: removed for removed in load_rows("removed_names.yaml", RemovedName)}


def removed_name(name: str, torch: str) -> RemovedName | None:
    """The entry that a dotted name lies in, if that release of torch does not have it.

    >>> removed_name("torch._six.inf", "2.7").name
    'torch._six'
    """
    parts = name.split(".")
    candidates = (removed_names().get(".".join(parts[:length])) for length in range(len(parts), 1, -1))
    return next((name for name in candidates if name and key(torch) >= key(name.missing_from)), None)
