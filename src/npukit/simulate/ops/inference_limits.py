"""What CANN's attention of inference refuses, by the documentation of torch_npu's npu_fused_infer_attention_score."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .attention_layout import RAGGED
from .refusal import require

_API = "aclnnFusedInferAttentionScoreV4"
_COMPRESSED = 2048
_ROTATED = 64  # the depth of rotary parts
_LATENT = 512  # the depth of heads of latent attention whose keys all share one


def check_rotary_parts(heads: int, kv_heads: int, depth: int, rotated: int, is_paged: bool) -> None:
    """They go with heads of 128, or with latent attention: one key head in pages, and a power of two of query heads."""
    require(depth in (128, _LATENT), _API, f"With query_rope a head is 128 or {_LATENT} long, not {depth}.")
    require(rotated == _ROTATED, _API, f"query_rope must have a depth of {_ROTATED}, not {rotated}.")
    if depth == _LATENT:
        power = heads.bit_count() == 1 and heads <= 128
        require(kv_heads == 1 and power, _API, f"Heads of {_LATENT}: {heads} of queries and {kv_heads} of keys.")
        require(is_paged, _API, f"Heads of {_LATENT} need a block_table.")


def check_heads(heads: int, kv_heads: int, depth: int, element_size: int) -> None:
    """Query heads are a small multiple of key heads, and a head is a whole number of 16-byte pieces."""
    require(heads > 0, _API, f"num_heads must be greater than 0, not {heads}.")
    require(heads % kv_heads == 0, _API, f"num_heads {heads} is no multiple of num_key_value_heads {kv_heads}.")
    most = 128 if depth == _LATENT else 64
    require(heads // kv_heads <= most, _API, f"More than {most} query heads share a key head: {heads} and {kv_heads}.")
    require(depth <= 512, _API, f"A head of {depth} is longer than 512.")
    require(depth * element_size % 16 == 0, _API, f"A head of {depth} elements is not aligned to 16 bytes.")


def check_mask(mask: Tensor | None, mode: int) -> None:
    """Modes 2 to 4 read a compressed mask of fixed size."""
    require(0 <= mode <= 4, _API, f"There is no sparse_mode {mode}: use 0 to 4.")
    if mask is None:
        return
    dtypes = (torch.bool, torch.int8, torch.uint8)
    require(mask.dtype in dtypes, _API, f"atten_mask must be bool, int8 or uint8, not {mask.dtype}.")
    if mode > 1:
        fits = mask.shape[-2:] == (_COMPRESSED, _COMPRESSED) and mask.numel() == _COMPRESSED**2
        shape = tuple(mask.shape)
        require(fits, _API, f"sparse_mode {mode} needs an atten_mask of {_COMPRESSED} x {_COMPRESSED}, not {shape}.")


def check_pages(
    block_table: Tensor, cache: Tensor, block_size: int, kv_lengths: Sequence[int] | None, layout: str, queries: int
) -> None:
    """Lengths must be known, pages must be of a size that the kernel takes, and every batch must have enough of them.

    One query a batch: up to 512, a multiple of 16; more: 128 to 512, a multiple of 128; end to end: up to 1024, a
    multiple of 16. BSH and BSND only go with (page, row, all heads).
    """
    ragged = layout.split("_")[0] in RAGGED
    page = cache.size(1) if cache.dim() == 3 else cache.size(-2)
    require(bool(kv_lengths), _API, "With a block_table the lengths of keys must be given.")
    require(block_table.dtype == torch.int32, _API, f"block_table must be int32, not {block_table.dtype}.")
    require(block_table.dim() == 2, _API, f"block_table must have two dimensions, not {block_table.dim()}.")
    require(block_size == page, _API, f"block_size is {block_size}, and the cache has pages of {page}.")
    step, most = (16, 1024) if ragged else (16, 512) if queries == 1 else (128, 512)
    require(
        page % step == 0 and page <= most, _API, f"block_size must be a multiple of {step} up to {most}, not {page}."
    )
    require(
        cache.dim() != 4 or ragged or layout.startswith("BNSD"),
        _API,
        f"input_layout {layout} needs a cache of (block, block_size, all heads), not {tuple(cache.shape)}.",
    )
    longest = max(kv_lengths or [0])
    room = block_table.size(1) * page
    require(longest <= room, _API, f"A length of {longest} does not fit into {block_table.size(1)} pages of {page}.")


def check_totals(totals: Sequence[int] | None, tokens: int | None) -> None:
    """Lengths of sequences that lie end to end are running totals, of up to 4096 sequences."""
    ends = list(totals or ())
    require(bool(ends) and len(ends) <= 4096, _API, "The lengths of 1 to 4096 sequences must be given.")
    rising = all(before <= after for before, after in zip([0, *ends], ends, strict=False))
    require(rising, _API, f"Lengths must be running totals, and {ends} falls.")
    require(tokens is None or ends[-1] <= tokens, _API, f"The lengths reach {ends[-1]}, and there are {tokens} tokens.")
