"""Counts the replacements that a program used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

REPLACED: Counter[str] = Counter()


def summary(replaced: Counter[str] | Iterable[tuple[str, int]]) -> str:
    """The counts, as text for the user."""
    rows = Counter(dict(replaced)).most_common()
    if not rows:
        return "npukit --auto: the script used nothing of CUDA.\n"
    lines = [f"{count:8}  {what}" for what, count in rows]
    return "\n".join(["npukit --auto replaced these at run time; no file was changed:", *lines]) + "\n"
