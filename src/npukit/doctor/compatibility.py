"""Which torch, torch_npu and CANN go together, from the published table; what it does not hold is unknown."""

from __future__ import annotations

from npukit.facts.compatibility import Release, pythons_by_torch, releases
from npukit.facts.versions import key, same


def release_of(torch_npu: str) -> Release | None:
    """The row of a torch_npu, or None where the table has none."""
    return next((release for release in releases() if same(release.torch_npu, torch_npu)), None)


def pythons_of(torch: str) -> list[str]:
    """The Pythons that torch_npu is published for, with this torch; empty where that is not known."""
    return next((pythons for known, pythons in pythons_by_torch().items() if same(known, torch)), [])


def nearest(torch: str, cann: str, python: str) -> Release | None:
    """The known combination that changes least: first keep CANN, then torch, then take the newest.

    >>> nearest("2.8.0", "8.5.0", "3.11").torch_npu
    '2.8.0.post2'
    """
    minor = ".".join(python.split(".")[:2])
    usable = [release for release in releases() if not python or minor in pythons_of(release.torch)]
    if cann and any(same(release.cann, cann) for release in usable):
        usable = [release for release in usable if same(release.cann, cann)]
    if not usable:
        return None
    if torch:
        return min(usable, key=lambda release: (not same(release.torch, torch), _distance(release.torch, torch)))
    return usable[0]


def _distance(one: str, other: str) -> tuple[int, ...]:
    return tuple(abs(a - b) for a, b in zip((*key(one), 0, 0, 0)[:3], (*key(other), 0, 0, 0)[:3], strict=True))


def pip_line(release: Release) -> str:
    """The command that installs a combination."""
    return f"pip install torch=={release.torch} torch_npu=={release.torch_npu}"
