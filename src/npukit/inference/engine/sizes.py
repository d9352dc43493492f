"""How many blocks of the key/value cache fit into memory."""

from __future__ import annotations

import os

import torch

from npukit.errors import NpukitError
from npukit.inference.engine.cache import CacheShape
from npukit.launch.abilities import abilities

# Of the host's free memory, because other programs need some too.
HOST_SHARE = 0.25


def blocks_that_fit(
    shape: CacheShape, size: int, rows: int, max_model_len: int, share: float, device: torch.device
) -> int:
    """As many as all rows could ever use, or as fit into memory."""
    useful = rows * -(-max_model_len // size) + 1
    block = shape.bytes_per_token * size
    fitting = _free(share, device) // block
    if fitting < -(-min(max_model_len, 256) // size) + 1:
        raise NpukitError(
            f"There is no memory left for the cache on {device}: a token takes {shape.bytes_per_token / 1024:.0f} "
            "KiB. Use a smaller model or dtype, or free some memory."
        )
    return int(min(useful, fitting))


def _free(share: float, device: torch.device) -> int:
    if not abilities(device).own_memory:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * HOST_SHARE)
    free, total = torch.get_device_module(device).mem_get_info(device)
    return max(0, int(free - (1 - share) * total))
