"""Which names torch.npu, torch.accelerator and torch.cpu have, read from the real torch_npu."""

from __future__ import annotations

import functools
import json
from pathlib import Path


@functools.cache
def names_of(module: str) -> frozenset[str]:
    """The public names of `npu`, `accelerator` or `cpu` of torch; scripts/collect_npu_names.py makes the data.

    >>> "nvtx" in names_of("npu")
    False
    """
    text = Path(__file__).with_name("torch_npu_names.json").read_text(encoding="utf-8")
    return frozenset(json.loads(text)[module])
