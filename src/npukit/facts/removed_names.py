"""Names that releases of torch no longer have, and what to write instead."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npukit.facts.data import load_rows, longest_entry
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
    removed = longest_entry(removed_names(), name, least=2)
    return removed if removed and key(torch) >= key(removed.missing_from) else None
