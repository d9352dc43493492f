"""Which of the known libraries are installed beside npukit, and in which version."""

from __future__ import annotations

import functools

from npukit.facts.libraries import Library


@functools.cache
def installed_version(library: Library) -> str | None:
    """The version of a library in this environment, from the metadata of its packages; None where it has none.

    >>> installed_version(imported("accelerate"))
    '1.2.0'
    """
    from importlib import metadata

    for package in library.packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None
