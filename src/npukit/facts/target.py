"""The platform that code is to run on: versions of torch_npu, torch and CANN, and a card."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD, card
from npukit.facts.compatibility import Release, releases
from npukit.facts.torch_npu import APIS, NAMES
from npukit.facts.versions import key, same

_FIELDS = ("torch_npu", "torch", "cann", "card")
EXAMPLE = "torch_npu=2.7,card=910B3"


@dataclass(frozen=True)
class Target:
    """Versions and a card that belong together. `Target.of` fills in the missing ones.

    >>> Target.of(torch_npu="2.7").torch
    '2.7.1'
    """

    torch_npu: str
    torch: str
    cann: str  # "" if no CANN release is known for this torch_npu
    card: str

    @classmethod
    def of(cls, torch_npu: str = "", torch: str = "", cann: str = "", card: str = DEFAULT_CARD) -> Target:
        """The target with these versions. Missing ones are the newest with known facts."""
        release = _release(torch_npu, torch, cann)
        if not torch_npu:
            torch_npu = torch or (release.torch_npu if release else APIS.versions[-1])
        if NAMES.nearest(torch_npu) is None:
            raise NpukitError(f"npukit supports torch_npu {NAMES.versions[0]} and later, not {torch_npu}.")
        if not torch:
            torch = release.torch if release else ".".join(torch_npu.split(".")[:3])
        if key(torch)[:2] != key(torch_npu)[:2]:
            raise NpukitError(f"torch_npu {torch_npu} needs torch {_minor(torch_npu)}, not torch {torch}.")
        return cls(torch_npu, torch, cann or (release.cann if release else ""), _card_name(card))

    @classmethod
    def parse(cls, text: str) -> Target:
        """Parse a target written as NAME=VALUE pairs.

        >>> Target.parse("torch_npu=2.7,card=910B3").card
        '910B3'
        """
        fields: dict[str, str] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            name = name.lower().replace("-", "_")
            if name not in _FIELDS or not value:
                raise NpukitError(
                    f"{text!r} is not a target: write it as {EXAMPLE}; its parts are {', '.join(_FIELDS)}."
                )
            if name != "card" and not re.fullmatch(r"\d+(\.\w+)+", value):
                raise NpukitError(f"{value!r} is not a version of {name}: write the target as {EXAMPLE}.")
            fields[name] = value
        return cls.of(**fields)

    @cached_property
    def facts_version(self) -> str:
        """The torch_npu version whose API table is used: the nearest older one, or else the oldest."""
        return APIS.nearest(self.torch_npu) or APIS.versions[0]

    def differences(self, other: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Requested and actual values of the fields in which they differ.

        >>> Target.of(torch_npu="2.7").differences({"torch_npu": "2.9.0", "torch": "2.7.1", "card": "910B3"})
        {'torch_npu': ('2.7', '2.9.0')}
        """
        pairs = {name: (getattr(self, name), other.get(name, "")) for name in _FIELDS}
        return {
            name: (own, installed)
            for name, (own, installed) in pairs.items()
            if own and not (own == installed if name == "card" else _is_of(installed, own))
        }

    def has_torch(self, version: str) -> bool:
        """Whether its torch is at least this version."""
        return key(self.torch) >= key(version)

    def __str__(self) -> str:
        stand_in = "" if self.facts_version == _minor(self.torch_npu) else f" (API table of {self.facts_version})"
        cann = f", CANN {self.cann}" if self.cann else ""
        return f"torch_npu {self.torch_npu}{stand_in}, torch {self.torch}{cann}, card {self.card}"


def _release(torch_npu: str, torch: str, cann: str) -> Release | None:
    """The newest release that matches all the given versions, if any."""
    for release in releases() if torch_npu or torch or cann else ():
        pairs = ((torch_npu, release.torch_npu), (torch, release.torch), (cann, release.cann))
        if all(not wanted or _is_of(known, wanted) for wanted, known in pairs):
            return release
    return None


def _is_of(known: str, version: str) -> bool:
    """Whether a version equals the requested one or belongs to its series: 2.7.1 belongs to 2.7."""
    return same(".".join(known.split(".")[: version.count(".") + 1]), version)


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _card_name(name: str) -> str:
    return card(name).name
