"""Which names torch.npu, torch.accelerator and torch.cpu have, read from the published wheels."""

from __future__ import annotations

import functools
import json

from npukit.facts.torch_npu import file_for


@functools.cache
def names_of(module: str, version: str) -> frozenset[str]:
    """The public names of `npu`, `accelerator` or `cpu` of torch in that version; empty for one too old to be known.

    >>> "empty_cache" in names_of("accelerator", "2.7"), "empty_cache" in names_of("accelerator", "2.11")
    (False, True)
    """
    file = file_for(version, "names.json")
    return frozenset(json.loads(file.read_text(encoding="utf-8"))[module]) if file else frozenset()
