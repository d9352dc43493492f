"""A paged decode step on NPU tensors, through the real torch_npu: write the cache, attend over it, sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_npu
from tests.on_npu.conftest import since


@since("2.7", "the operator writes only a card's own layout")
def test_a_decode_step_over_a_paged_cache() -> None:
    torch.manual_seed(0)
    batch, heads, kv_heads, depth, page, pages = 3, 4, 2, 16, 128, 7
    lengths = [130, 5, 128]
    table = torch.randperm(pages - 1).view(3, 2)
    past = [torch.randn(2, n, kv_heads, depth).half() for n in lengths]
    caches = torch.zeros(2, pages, page, kv_heads, depth).half().npu()
    for row, tokens in enumerate(past):
        at = torch.arange(lengths[row])
        slots = (table[row][at // page] * page + at % page).int().npu()
        torch_npu.npu_scatter_pa_kv_cache(*tokens.npu(), *caches, slots, cache_mode="Norm")

    def expected(q: Any) -> Any:
        rows = []
        for row, tokens in enumerate(past):
            k, v = tokens.float().transpose(1, 2).repeat_interleave(2, 1)
            rows.append((q[row].float() @ k.mT * 0.25).softmax(-1) @ v)
        return torch.stack(rows)

    q = torch.randn(batch, heads, 1, depth).half()
    common = {"num_key_value_heads": kv_heads, "block_table": table.int().npu(), "block_size": page}
    by_head = [cache.transpose(1, 2).contiguous() for cache in caches]
    actual, lse = torch_npu.npu_fused_infer_attention_score(
        q.npu(), *by_head, num_heads=heads, scale=0.25, input_layout="BNSD", actual_seq_lengths_kv=lengths, **common
    )
    torch.testing.assert_close(actual.cpu().float(), expected(q), rtol=4e-3, atol=4e-3)

    flat = [cache.flatten(2) for cache in caches]
    given = dict(
        num_query_heads=heads,
        softmax_scale=0.25,
        input_layout="BSH",
        actual_seq_kvlen=lengths,
        return_softmax_lse=True,
        **common,
    )
    q_flat = q.transpose(1, 2).flatten(2).npu()
    out, lse = torch_npu._npu_fused_infer_attention_score_v2_infer_output(
        q_flat,
        flat[1],
        input_layout="BSH",
        num_query_heads=heads,
        num_key_value_heads=kv_heads,
        block_table=common["block_table"],
        return_softmax_lse=True,
    )
    workspace = torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(q_flat, *flat, **given)
    torch_npu.npu_fused_infer_attention_score_v2.out(q_flat, *flat, **given, workspace=workspace, out=[out, lse])
    torch.testing.assert_close(out.view(batch, heads, 1, depth).cpu().float(), expected(q), rtol=4e-3, atol=4e-3)
    assert lse.shape == (batch, heads, 1, 1) and lse.isfinite().all()

    logits = torch.randn(batch, 50).half().npu()
    k, p = torch.full((batch,), 5).int().npu(), torch.ones(batch).half().npu()
    draws = []
    for seed in (1, 1, 2):
        source = torch.Generator("npu").manual_seed(seed)
        many = [
            torch_npu.npu_top_k_top_p_sample(logits, k, p, post_sample="multiNomial", generator=source)[0]
            for _ in range(20)
        ]
        draws.append(torch.stack(many).cpu())
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert (logits.cpu().gather(1, draws[0].T) >= logits.cpu().topk(5).values[:, -1:]).all()

    with pytest.raises(RuntimeError, match="aclnnScatterPaKvCache") as refused:  # a plain cache is not PA_NZ
        torch_npu.npu_scatter_pa_kv_cache(*past[1].npu(), *caches, torch.zeros(5).int().npu())
    assert "ERR01100" in str(refused.value)
