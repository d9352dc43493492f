"""How many blocks of the key/value cache fit into memory."""

from __future__ import annotations

import logging
import os

import torch

from npukit.errors import NpukitError
from npukit.inference.engine.cache import CacheShape
from npukit.launch.abilities import abilities

log = logging.getLogger(__name__)

# Of the host's free memory, because other programs need some too.
HOST_SHARE = 0.25


def rows_that_fit(states: int, wanted: int, share: float, device: torch.device) -> int:
    """How many sequences' states fit into half of the memory, the other half of which is for keys and values."""
    if not states:
        return wanted
    fitting = int(_free(share, device) / 2 / states) - 1  # one row is for padding
    if fitting < 1:
        raise NpukitError(
            f"There is no memory left for the states of the layers on {device}: those of an answer take "
            f"{states / 2**20:.0f} MiB. Use a smaller model, or free some memory."
        )
    if fitting < wanted:
        log.warning("The states of %d answers at the same time fit into memory, instead of %d", fitting, wanted)
    return min(fitting, wanted)


def blocks_that_fit(
    shape: CacheShape, size: int, rows: int, max_model_len: int, share: float, device: torch.device, states: int = 0
) -> int:
    """As many as all rows could ever use, or as fit into memory beside their states of this size."""
    useful = rows * -(-max_model_len // size) + 1
    block = max(1, shape.bytes_per_token * size)  # none where no layer has attention
    fitting = (_free(share, device) - (rows + 1) * states) // block
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
