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


def nearest(torch: str, torch_npu: str, cann: str, python: str) -> Release | None:
    """The known combination that changes least: of those for this CANN, the one that keeps most packages.

    Where the table does not list the installed CANN, a combination for an older one is taken; one for a CANN that is
    not there is never offered.

    >>> nearest("2.8.0", "", "8.5.0", "3.11").torch_npu
    '2.8.0.post2'
    """
    minor = ".".join(python.split(".")[:2])
    usable = [release for release in releases() if not python or minor in pythons_of(release.torch)]
    if cann:
        listed = [release for release in usable if same(release.cann, cann)]
        usable = listed or [release for release in usable if key(release.cann) < key(cann)]
    return min(usable, key=lambda release: _change(release, torch, torch_npu), default=None)


def _change(release: Release, torch: str, torch_npu: str) -> tuple[int, ...]:
    """How much a combination would change: how many packages, then how far torch would move."""
    changed = not same(release.torch, torch), not same(release.torch_npu, torch_npu)
    distance = zip((*key(release.torch), 0, 0, 0)[:3], (*key(torch), 0, 0, 0)[:3], strict=True)
    return (sum(changed), *(abs(one - other) for one, other in distance)) if torch else (0,)


def pip_line(release: Release, torch: str = "", torch_npu: str = "") -> str:
    """The command that installs a combination over what is there: only what differs."""
    wanted = {"torch": (release.torch, torch), "torch_npu": (release.torch_npu, torch_npu)}
    differing = [f"{name}=={version}" for name, (version, there) in wanted.items() if not same(version, there)]
    return f"pip install {' '.join(differing)}"
