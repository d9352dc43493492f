"""Caches in pages: what is written to slots is found there, and what does not fit is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import paged_cache as ops
from npukit.simulate.ops.registry import KERNELS

PAGES, ROWS, HEADS, DEPTH = 3, 16, 2, 32


def make(mode: str | None, depth: int = DEPTH) -> Tensor:
    shape = (PAGES, HEADS * depth // 16, ROWS, 16) if mode == "PA_NZ" else (PAGES, ROWS, HEADS, depth)
    return torch.randn(shape).half()


def rows(cache: Tensor, mode: str | None, depth: int = DEPTH) -> Tensor:
    """Every slot's token, (slot, head, depth)."""
    flat = cache.transpose(1, 2) if mode == "PA_NZ" else cache
    return flat.reshape(PAGES * ROWS, HEADS, depth)


@pytest.mark.parametrize("mode", ["Norm", None, "PA_NZ"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tokens_are_written_to_their_slots_and_nowhere_else(mode: str | None, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    key, value = torch.randn(5, HEADS, DEPTH).half(), torch.randn(5, HEADS, 64).half()
    caches = make(mode), make(mode, 64)
    before = [rows(caches[0], mode).clone(), rows(caches[1], mode, 64).clone()]
    slots = torch.tensor([40, 3, -1, 17, 0], dtype=dtype)
    ops.scatter_pa_kv_cache(key, value, *caches, slots, cache_mode=mode)
    for cache, old, tokens, depth in zip(caches, before, (key, value), (DEPTH, 64), strict=True):
        for token, slot in zip(tokens, slots.tolist(), strict=True):
            if slot >= 0:
                old[slot] = token
        assert torch.equal(rows(cache, mode, depth), old)


def test_the_functional_form_leaves_the_caches_alone() -> None:
    key, caches, slots = torch.randn(2, HEADS, DEPTH).half(), (make("Norm"), make("Norm")), torch.tensor([1, 20])
    before = [cache.clone() for cache in caches]
    written = KERNELS["npu::npu_scatter_pa_kv_cache_functional"](key, key, *caches, slots, cache_mode="Norm")
    assert all(torch.equal(*pair) for pair in zip(caches, before, strict=True))
    assert all(torch.equal(rows(cache, "Norm")[slots], key) for cache in written)


@pytest.mark.parametrize(
    "change",
    [
        {"cache_mode": "PA_NZ"},  # the default, which a plain cache does not fit
        {"cache_mode": "ND"},
        {"slot_mapping": torch.tensor([0, PAGES * ROWS])},
        {"slot_mapping": torch.tensor([0.0, 1.0])},
        {"slot_mapping": torch.tensor([0])},
        {"key": torch.randn(2, HEADS, DEPTH)},
        {"key_cache": torch.randn(PAGES, ROWS, HEADS, 2 * DEPTH).half()[..., :DEPTH]},
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any]) -> None:
    token = torch.randn(2, HEADS, DEPTH).half()
    arguments = {"key": token, "value": token, "key_cache": make("Norm"), "value_cache": make("Norm")}
    arguments |= {"slot_mapping": torch.tensor([0, 1]), "cache_mode": "Norm"} | change
    with pytest.raises(RuntimeError, match="561002"):
        ops.scatter_pa_kv_cache(**arguments)


@pytest.mark.parametrize("totals", [False, True])
def test_sequences_are_gathered_end_to_end(totals: bool) -> None:
    torch.manual_seed(0)
    caches = make("Norm"), make("Norm")
    table = torch.tensor([[2, 0], [1, 7]], dtype=torch.int32)
    lengths = torch.tensor([0, 20, 38] if totals else [20, 18], dtype=torch.int32)
    out = torch.zeros(2, 38, HEADS, DEPTH).half()
    ops.gather_pa_kv_cache(*caches, table, lengths, *out, is_seq_lens_cumsum=totals)
    for cache, actual in zip(caches, out, strict=True):
        assert torch.equal(actual[:20], torch.cat((cache[2], cache[0]))[:20])
        assert torch.equal(actual[20:36], cache[1]) and not actual[36:].any()  # there is no page 7
    moved = KERNELS["npu::npu_gather_pa_kv_cache_functional"](
        *caches, table, lengths, *out, seq_offset=torch.tensor([16, 0]), is_seq_lens_cumsum=totals
    )
    assert torch.equal(moved[0][:16], caches[0][0]) and not torch.equal(moved[0], out[0])
