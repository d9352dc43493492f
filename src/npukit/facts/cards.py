"""Ascend cards; every one of them can be simulated."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

from npukit.errors import NpukitError
from npukit.facts.data import load_rows

DEFAULT_CARD = "910B3"


@dataclass(frozen=True)
class Card:
    """One model of Ascend card. The comments at the head of cards.yaml explain the fields."""

    name: str
    soc: str
    smi_name: str
    memory_mib: int
    cube_cores: int
    vector_cores: int
    bf16: bool
    tflops: float | None
    bandwidth_gbs: float | None
    links: Literal["mesh", "pairs", "pcie"]
    link_gbs: float | None
    network_gbs: float | None
    per_server: int
    series: str
    kernels: str
    trains: bool = True
    also: tuple[str, ...] = ()


@functools.cache
def cards() -> dict[str, Card]:
    """All known cards by name, in the order of the data."""
    return {card.name: card for card in load_rows("cards.yaml", Card)}


def card(name: str) -> Card:
    """The card with this name.

    >>> card("910B3").memory_mib
    65536
    >>> card("910C").name
    '910_9391'
    """
    known = cards()
    lower = name.lower().removeprefix("ascend")
    by_lower_name = {word.lower(): card.name for card in known.values() for word in (card.name, *card.also)}
    if lower in by_lower_name:
        return known[by_lower_name[lower]]
    import difflib

    near = difflib.get_close_matches(lower, by_lower_name, n=1)
    hint = f"did you mean {by_lower_name[near[0]]}?" if near else f"known are {', '.join(known)}."
    raise NpukitError(f"There is no card named {name!r}: {hint}")


def card_of(smi_name: str) -> Card | None:
    """The card that npu-smi reports under this name; None if it is not known.

    >>> card_of("910B3").kernels
    'ascend910b'
    """
    return next((card for card in cards().values() if smi_name in (card.smi_name, card.name)), None)
