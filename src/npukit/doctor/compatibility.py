"""Which versions of torch, torch_npu and CANN work together.

This comes from a published table. Nothing is assumed about versions that the table does not list.
"""

from __future__ import annotations

from npukit.facts.compatibility import Release, pythons_by_torch, releases
from npukit.facts.versions import key, same


def release_of(torch_npu: str) -> Release | None:
    """Return the table's row for a version of torch_npu, or None if it is not listed."""
    return next((release for release in releases() if same(release.torch_npu, torch_npu)), None)


def pythons_of(torch: str) -> list[str]:
    """Return the Python versions that torch_npu supports with this torch, or nothing if this torch is not listed."""
    return next((pythons for known, pythons in pythons_by_torch().items() if same(known, torch)), [])


def nearest(torch: str, torch_npu: str, cann: str, python: str) -> Release | None:
    """Return the listed combination that requires the fewest changes to the installed packages.

    Combinations for the installed CANN come first. If there is none, combinations for an older CANN are considered. A
    combination that needs a newer CANN than the installed one is never returned.

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
    """Return how much a combination would change: the number of packages, then how far torch's version would move."""
    changed = not same(release.torch, torch), not same(release.torch_npu, torch_npu)
    distance = zip((*key(release.torch), 0, 0, 0)[:3], (*key(torch), 0, 0, 0)[:3], strict=True)
    return (sum(changed), *(abs(one - other) for one, other in distance)) if torch else (0,)


def pip_line(release: Release, torch: str = "", torch_npu: str = "") -> str:
    """Return the pip command that installs a combination. It names only the packages whose version changes."""
    wanted = {"torch": (release.torch, torch), "torch_npu": (release.torch_npu, torch_npu)}
    differing = [f"{name}=={version}" for name, (version, there) in wanted.items() if not same(version, there)]
    return f"pip install {' '.join(differing)}"
