"""Keys and values of inference in pages: tokens are written to slots, and read back by a table of pages.

Slot s is row s % page_size of page s // page_size. A cache is (page, row, head, depth), or in the matrix units' own
layout (page, all heads' depths / 16, row, 16), which torch_npu calls PA_NZ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .refusal import require
from .registry import kernel

_SCATTER = "aclnnScatterPaKvCache"
_GATHER = "aclnnGatherPaKvCache"


def _write(tokens: Tensor, cache: Tensor, slots: Tensor, fractal: bool) -> None:
    row = tokens[0].numel() if len(tokens) else 0
    require(tokens.dtype == cache.dtype, _SCATTER, f"tokens are {tokens.dtype} and their cache is {cache.dtype}.")
    require(cache.dim() == 4 and cache.is_contiguous(), _SCATTER, "A cache must be contiguous, of four dimensions.")
    width = cache.size(1) * cache.size(3) if fractal else cache.size(2) * cache.size(3)
    require(
        not row or width == row,
        _SCATTER,
        f"A cache of shape {tuple(cache.shape)} has no room for tokens of {row} elements "
        f"in cache_mode {'PA_NZ' if fractal else 'Norm'}.",
    )
    page = cache.size(2) if fractal else cache.size(1)
    if cache.is_meta:
        return
    written = slots >= 0
    tokens, slots = tokens[written], slots[written].long()
    require(bool((slots < cache.size(0) * page).all()), _SCATTER, f"A slot lies past {cache.size(0)} pages of {page}.")
    if fractal:
        cache[slots // page, :, slots % page] = tokens.reshape(-1, cache.size(1), cache.size(3))
    else:
        cache.flatten(0, 1)[slots] = tokens.reshape(-1, *cache.shape[2:])


@kernel("npu_scatter_pa_kv_cache", functional="npu_scatter_pa_kv_cache_functional", changes=(2, 3))
def scatter_pa_kv_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor, *,
    compress_lens: Tensor | None = None, compress_seq_offsets: Tensor | None = None, seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:  # fmt: skip
    """Write each token's key and value to its slot, in place; a negative slot writes nothing."""
    if compress_lens is not None or seq_lens is not None or key.dim() == 4:
        raise NotImplementedError("The simulated npu_scatter_pa_kv_cache does not compress: leave compress_lens out.")
    require(cache_mode in ("PA_NZ", "Norm", None), _SCATTER, f"There is no cache_mode {cache_mode}.")
    require(slot_mapping.dtype in (torch.int32, torch.int64), _SCATTER, "slot_mapping must be int32 or int64.")
    require(key.shape[:2] == value.shape[:2], _SCATTER, "key and value must agree in tokens and heads.")
    require(slot_mapping.shape == key.shape[:1], _SCATTER, "slot_mapping must hold one slot a token.")
    for tokens, cache in ((key, key_cache), (value, value_cache)):
        _write(tokens, cache, slot_mapping, cache_mode == "PA_NZ")


def _read(cache: Tensor, pages: Tensor, rows: Tensor) -> Tensor:
    """Rows of a cache; pages that are not there read as zeros."""
    there = (pages >= 0) & (pages < cache.size(0))
    gathered = cache[pages.clamp(0, cache.size(0) - 1), rows]
    return torch.where(there.view(-1, *[1] * (gathered.dim() - 1)), gathered, 0)


@kernel("npu_gather_pa_kv_cache", functional="npu_gather_pa_kv_cache_functional", changes=(4, 5))
def gather_pa_kv_cache(
    key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor, key: Tensor, value: Tensor, *,
    seq_offset: Tensor | None = None, is_seq_lens_cumsum: bool = False,
) -> None:  # fmt: skip
    """Collect the sequences of the table end to end into key and value, each from the page of its seq_offset on."""
    require(key_cache.dim() == 4, _GATHER, "A cache must have four dimensions.")
    if key_cache.is_meta:
        return
    page = key_cache.size(1)
    lengths = (seq_lens.diff() if is_seq_lens_cumsum else seq_lens).tolist()
    table = torch.nn.functional.pad(block_tables.long(), (0, 1), value=-1)
    first = torch.zeros(len(lengths), dtype=torch.long) if seq_offset is None else seq_offset.long() // page
    done = 0
    for batch, length in enumerate(lengths):
        row = torch.arange(min(length, key.size(0) - done))
        pages = table[batch][(first[batch] + row // page).clamp(max=table.size(1) - 1)]
        for cache, out in ((key_cache, key), (value_cache, value)):
            out[done : done + len(row)] = _read(cache, pages, row % page)
        done += len(row)
