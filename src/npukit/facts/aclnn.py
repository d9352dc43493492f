"""What CANN documents that its operators accept, by CANN version. scripts/make_type_facts.py generates the data."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npukit.facts.cards import card as find_card
from npukit.facts.version_table import VersionTable

_TABLE = VersionTable(Path(__file__).with_name("aclnn.csv"), width=5)
_SERIES = ("A2", "A3")  # other cards run most operators through an older interface, whose limits are not known


@dataclass(frozen=True)
class Limit:
    """The documented limits of one operator argument on a card."""

    function: str
    """The aclnn function that takes it."""
    argument: str
    types: tuple[str, ...]
    """The documented number types, such as fp32."""
    dimensions: int
    """The most dimensions; 0 where no limit is known."""


@functools.cache
def _limits(version: str) -> Mapping[str, tuple[Limit, ...]]:
    limits: dict[str, tuple[Limit, ...]] = {}
    for row in _TABLE.rows(version):
        limit = Limit(row["function"], row["argument"], (*row["types"].split(),), int(row["dimensions"] or 0))
        limits[row["op"]] = (*limits.get(row["op"], ()), limit)
    return limits


def limits(cann: str, card: str) -> Mapping[str, tuple[Limit, ...]]:
    """The limits of arguments by torch operator, for this card and this CANN version or the nearest older one.

    Each CANN version adds types, so for a version older than all known ones the oldest known one is used.

    >>> [limit.types for limit in limits("9.1.0", "910B3")["aten::bmm"]]
    [('bf16', 'fp16', 'fp32'), ('bf16', 'fp16', 'fp32')]
    """
    if find_card(card).series not in _SERIES:
        return {}
    return _limits(_TABLE.nearest(cann) or _TABLE.versions[0])
