"""Names that newer releases of torch no longer have, and their replacements."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from npukit.facts.data import load_rows, longest_entry
from npukit.facts.versions import key


@dataclass(frozen=True)
class RemovedName:
    """A removed name. The comments at the head of removed_names.yaml explain the fields."""

    name: str
    missing_from: str
    instead: str


@functools.cache
def removed_names() -> dict[str, RemovedName]:
    """All names known to have been removed."""
    return {removed.name: removed for removed in load_rows("removed_names.yaml", RemovedName)}


def removed_name(name: str, torch: str) -> RemovedName | None:
    """The entry that matches a dotted name, if this release of torch no longer has it.

    >>> removed_name("torch._six.inf", "2.7").name
    'torch._six'
    """
    removed = longest_entry(removed_names(), name, least=2)
    return removed if removed and key(torch) >= key(removed.missing_from) else None
