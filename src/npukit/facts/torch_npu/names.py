"""The names in torch.npu, torch.accelerator and torch.cpu, extracted from the published wheels."""

from __future__ import annotations

import functools

from npukit.facts.torch_npu import NAMES


@functools.cache
def names_of(module: str, version: str) -> frozenset[str]:
    """The public names of torch's `npu`, `accelerator` or `cpu` in this version; empty if it is older than the data.

    >>> "empty_cache" in names_of("accelerator", "2.7"), "empty_cache" in names_of("accelerator", "2.11")
    (False, True)
    """
    rows = NAMES.rows(NAMES.nearest(version) or "")
    return frozenset(row["name"] for row in rows if row["module"] == module)
