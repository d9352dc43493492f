"""The simulated attention of inference against softmax(q k^T) v written out for every batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import inference_attention as ops

PAGE = 16
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
TO_LAYOUT: dict[str, Callable[[Tensor], Tensor]] = {
    "BNSD": lambda x: x,
    "BSND": lambda x: x.transpose(1, 2),
    "BSH": lambda x: x.transpose(1, 2).flatten(2),
    "NBSD": lambda x: x.transpose(0, 1),
    "NSD": lambda x: x[0],
    "SH": lambda x: x[0].transpose(0, 1).flatten(1),
    "TND": lambda x: x.transpose(1, 2).flatten(0, 1),
    "NTD": lambda x: x.transpose(0, 1).flatten(1, 2),
}


def plain(q: Tensor, k: Tensor, v: Tensor, scale: float, hide: Tensor | None = None, bias: Any = 0.0) -> Tensor:
    k, v = (x.float().repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q.float() @ k.mT * scale + bias
    return (scores if hide is None else scores.masked_fill(hide, float("-inf"))).softmax(-1) @ v


def make(batch: int = 3, queries: int = 5, keys: int = 8, v_depth: int = 16, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(1)
    shapes = (4, queries, 16), (2, keys, 16), (2, keys, v_depth)
    return [torch.randn(batch, *shape).to(dtype) for shape in shapes]


def same(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(
        actual.float(), wanted.float(), rtol=TOLERANCE[actual.dtype], atol=TOLERANCE[actual.dtype]
    )


def distance(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) - torch.arange(queries).unsqueeze(1)


def paged(k: Tensor, v: Tensor, form: str) -> tuple[Tensor, Tensor, Tensor]:
    """Caches in shuffled pages of PAGE keys, and the table to find a batch's pages by."""
    table = torch.randperm(k.size(0) * k.size(2) // PAGE).view(k.size(0), -1)
    caches = []
    for x in (k, v):
        pages = x.unflatten(2, (-1, PAGE)).transpose(1, 2).flatten(0, 1)[table.flatten().argsort()]
        if form == "BnBsH":
            pages = pages.transpose(1, 2).flatten(2)
        elif form == "BnND1BsD0":
            pages = pages.unflatten(-1, (-1, 16)).transpose(2, 3)
        caches.append(pages.contiguous())
    return caches[0], caches[1], table.int()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "BNSD_BSND", "BSND_NBSD", "BSH_NBSD", "NSD", "SH"])
def test_layouts_and_dtypes(layout: str, dtype: torch.dtype) -> None:
    q, k, v = make(batch=1 if layout in ("NSD", "SH") else 3, dtype=dtype)
    given, _, wanted = layout.partition("_")
    arguments = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout}
    inputs = [TO_LAYOUT[given](x) for x in (q, k, v)]
    expected = TO_LAYOUT[wanted or given](plain(q, k, v, 0.25))
    same(ops.prompt_flash_attention(*inputs, **arguments, scale_value=0.25), expected)
    out, lse = ops.fused_infer_attention_score(*inputs, **arguments, scale=0.25, softmax_lse_flag=True)
    same(out, expected)
    scores = q.float() @ k.float().repeat_interleave(2, 1).mT * 0.25
    torch.testing.assert_close(lse.squeeze(-1), scores.logsumexp(-1), rtol=1e-2, atol=1e-2)
    shapes = ops.fused_infer_attention_score(*(x.to("meta") for x in inputs), **arguments, softmax_lse_flag=True)
    assert [(x.shape, x.dtype) for x in shapes] == [(x.shape, x.dtype) for x in (out, lse)]
    assert ops.fused_infer_attention_score(*inputs, **arguments)[1].shape == (0,)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mode", [0, 1, 2, 3, 4, 10, 13])
def test_masks(mode: int, dtype: torch.dtype) -> None:
    q, k, v = make(dtype=dtype)
    d, compressed = distance(5, 8), torch.ones(2048, 2048, dtype=torch.bool).triu(1)
    per_head = torch.rand(3, 1, 5, 8) < 0.3
    hide, arguments = {
        0: (d > 0, {"atten_mask": d > 0}),
        1: (per_head, {"atten_mask": per_head.to(torch.int8)}),
        2: (d > 0, {"atten_mask": compressed}),
        3: (d > 3, {"atten_mask": compressed[None]}),
        4: ((d > 4) | (d < 1), {"atten_mask": compressed[None, None], "pre_tokens": 2, "next_tokens": 1}),
        10: (d > 0, {"atten_mask": d > 0}),
        13: (d > 3, {"atten_mask": compressed}),
    }[mode]
    assert isinstance(arguments, dict)
    common = {"num_heads": 4, "input_layout": "BNSD", "sparse_mode": mode}
    same(ops.prompt_flash_attention(q, k, v, **common, **arguments, scale_value=0.3), plain(q, k, v, 0.3, hide))
    if mode < 10:
        out, _ = ops.fused_infer_attention_score(q, k, v, **common, **arguments, scale=0.3)
        same(out, plain(q, k, v, 0.3, hide))


def test_without_a_mask_nothing_is_hidden() -> None:
    q, k, v = make()
    same(ops.prompt_flash_attention(q, k, v, num_heads=4, input_layout="BNSD"), plain(q, k, v, 1.0))


def test_large_scores_in_fp16_are_rounded_unless_high_precision_is_asked_for() -> None:
    q, k, v = make(queries=64, keys=64, dtype=torch.half)
    arguments: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": "BNSD", "scale_value": 128.0}
    scores = (q.float() @ k.float().repeat_interleave(2, 1).mT).half() * 128.0
    rounded = scores.float().softmax(-1).half().float() @ v.float().repeat_interleave(2, 1)
    exact = plain(q, k, v, 128.0)
    assert (rounded - exact).abs().max() > 0.1
    same(ops.prompt_flash_attention(q, k, v, **arguments), rounded)
    same(ops.prompt_flash_attention(q, k, v, **arguments, sparse_mode=10), exact)
    both = {"scale" if name == "scale_value" else name: given for name, given in arguments.items()}
    same(ops.fused_infer_attention_score(q, k, v, **both)[0], exact)
    same(ops.fused_infer_attention_score(q, k, v, **both, inner_precise=1)[0], rounded)


def test_pse_shift_is_added_after_scaling() -> None:
    q, k, v = make()
    shift = torch.randn(1, 4, 5, 8)
    out = ops.prompt_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", scale_value=0.5, pse_shift=shift)
    same(out, plain(q, k, v, 0.5, bias=shift))


def test_what_lies_past_the_lengths_has_no_effect() -> None:
    q, k, v = make()
    lengths = {"actual_seq_lengths": [5, 2, 3], "actual_seq_lengths_kv": [8, 1, 6]}
    out = ops.prompt_flash_attention(q, k, v, num_heads=4, input_layout="BNSD", **lengths)
    for batch, (queries, keys) in enumerate(zip(*lengths.values(), strict=True)):
        one = slice(batch, batch + 1)
        same(out[one, :, :queries], plain(q[one, :, :queries], k[one, :, :keys], v[one, :, :keys], 1.0))
        assert not out[one, :, queries:].any()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("form", ["whole", "BnBsH", "BnNBsD", "BnND1BsD0"])
def test_one_query_over_the_keys_so_far(form: str, dtype: torch.dtype) -> None:
    q, k, v = make(queries=1, keys=48, dtype=dtype)
    mask, lengths = torch.rand(3, 48) < 0.3, [48, 20, 1]
    mask[:, 0] = False
    past = torch.arange(48) >= torch.tensor(lengths).unsqueeze(1)
    expected = plain(q, k, v, 0.25, (past | mask)[:, None, None])
    arguments: dict[str, Any] = {"num_heads": 4, "num_key_value_heads": 2, "atten_mask": mask}
    layout = arguments["input_layout"] = "BNSD" if form == "BnNBsD" else "BSH"
    if form == "whole":
        keys, values = TO_LAYOUT["BSH"](k), TO_LAYOUT["BSH"](v)
    else:
        keys, values, arguments["block_table"] = paged(k, v, form)
        arguments["block_size"] = PAGE
    query = TO_LAYOUT[layout](q)
    out = ops.incre_flash_attention(query, keys, values, **arguments, scale_value=0.25, actual_seq_lengths=lengths)
    same(out, TO_LAYOUT[layout](expected))
    fused, _ = ops.fused_infer_attention_score(
        query, keys, values, **arguments, scale=0.25, actual_seq_lengths_kv=lengths
    )
    same(fused, out)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", ["TND", "NTD_TND", "TND_NTD"])
@pytest.mark.parametrize("pages", [False, True])
def test_sequences_end_to_end(pages: bool, layout: str, dtype: torch.dtype) -> None:
    q, k, v = make(batch=2, queries=4, keys=32, dtype=dtype)
    given, _, wanted = layout.partition("_")
    causal = distance(4, 32) > 28
    arguments = {"atten_mask": torch.ones(2048, 2048, dtype=torch.bool).triu(1), "sparse_mode": 3, "num_heads": 4}
    if pages:
        keys, values, table = paged(k, v, "BnNBsD")
        arguments |= {"block_table": table, "block_size": PAGE, "actual_seq_lengths_kv": [32, 32]}
    else:
        keys, values = TO_LAYOUT[given](k), TO_LAYOUT[given](v)
        arguments |= {"actual_seq_lengths_kv": [32, 64]}
    out, lse = ops.fused_infer_attention_score(
        TO_LAYOUT[given](q), keys, values, **arguments, input_layout=layout, num_key_value_heads=2, scale=0.25,
        actual_seq_lengths=[4, 8], softmax_lse_flag=True,
    )  # fmt: skip
    same(out, TO_LAYOUT[wanted or given](plain(q, k, v, 0.25, causal)))
    assert lse.shape == (8, 4, 1)


def test_rotary_parts_a_sink_and_shorter_values() -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, 5, 128), torch.randn(3, 2, 8, 128), torch.randn(3, 2, 8, 12)
    q_rope, k_rope, sink = torch.randn(3, 4, 5, 64), torch.randn(3, 2, 8, 64), torch.randn(4)
    out, _ = ops.fused_infer_attention_score(
        q, k, v, num_query_heads=4, input_layout="BNSD", softmax_scale=0.2, query_rope=q_rope, key_rope=k_rope,
        learnable_sink=sink,
    )  # fmt: skip
    nowhere = torch.cat((v, torch.zeros(3, 2, 1, 12)), 2)
    k = torch.cat((k, k_rope), -1)
    bias = torch.cat((torch.zeros(4, 5, 8), sink.view(4, 1, 1).expand(4, 5, 1)), -1)
    k = torch.cat((k, torch.zeros(3, 2, 1, 192)), 2)
    same(out, plain(torch.cat((q, q_rope), -1), k, nowhere, 0.2, bias=bias))


def test_latent_attention_over_pages() -> None:
    torch.manual_seed(1)
    q, q_rope, latents, k_rope = (torch.randn(2, *s) for s in ((128, 1, 512), (128, 1, 64), (1, 32, 512), (1, 32, 64)))
    pages, rope_pages, table = paged(latents, k_rope, "BnBsH")
    given: dict[str, Any] = {"block_table": table, "block_size": PAGE, "actual_seq_lengths_kv": [32, 20], "scale": 0.05}
    given |= {"input_layout": "BSH", "num_key_value_heads": 1, "query_rope": TO_LAYOUT["BSH"](q_rope)}
    out, _ = ops.fused_infer_attention_score(
        TO_LAYOUT["BSH"](q), pages, pages, **given, num_heads=128, key_rope=rope_pages
    )
    past = torch.arange(32) >= torch.tensor([32, 20]).unsqueeze(1)
    expected = plain(torch.cat((q, q_rope), -1), torch.cat((latents, k_rope), -1), latents, 0.05, past[:, None, None])
    same(out, TO_LAYOUT["BSH"](expected))
    for heads, pages_of, rotated in ((20, 512, 64), (32, 256, 64), (32, 512, 32)):
        query, rope = torch.randn(2, 1, heads * pages_of), torch.randn(2, 1, heads * rotated)
        caches = pages[..., :pages_of], pages[..., :pages_of]
        with pytest.raises(RuntimeError, match="561002"):
            ops.fused_infer_attention_score(
                query, *caches, **given | {"query_rope": rope}, num_heads=heads, key_rope=rope_pages[..., :rotated]
            )


@pytest.mark.parametrize("layout", ["BNSD", "BSH", "BSND", "BNSD_BSND", "TND"])
def test_results_into_tensors_that_another_op_made(layout: str) -> None:
    q, k, v = make(v_depth=8)
    inputs = [TO_LAYOUT[layout.partition("_")[0]](x) for x in (q, k, v)]
    arguments = {"num_heads": 4, "num_key_value_heads": 2, "input_layout": layout, "softmax_lse_flag": True}
    lengths = {"actual_seq_lengths": [5, 10, 15], "actual_seq_lengths_kv": [8, 16, 24]} if layout == "TND" else {}
    made = ops.infer_output(inputs[0], inputs[2], **arguments)
    workspace = ops.get_max_workspace(*inputs, **arguments, **lengths)
    actual = ops.fused_infer_attention_score_out(*inputs, **arguments, **lengths, workspace=workspace, out=list(made))
    assert actual[0] is made[0] and actual[1] is made[1]
    expected = ops.fused_infer_attention_score(*inputs, **arguments, **lengths)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


def test_results_of_pages_into_tensors_that_another_op_made() -> None:
    q, k, v = make(queries=1, keys=32, v_depth=8)
    _, values, table = paged(k, v, "BnBsH")
    out, lse = ops.infer_output(
        TO_LAYOUT["BSH"](q), values, input_layout="BSH", num_heads=4, num_key_value_heads=2, block_table=table
    )
    assert out.shape == (3, 1, 4 * 8) and lse.shape == (0,)


def test_what_is_not_simulated_is_said() -> None:
    q, k, v = make()
    with pytest.raises(NotImplementedError, match="quant_scale2"):
        ops.fused_infer_attention_score(q, k, v, num_heads=4, input_layout="BNSD", quant_scale2=torch.ones(1))


PAGED = {"input_layout": "BNSD", "block_size": 16, "actual_seq_lengths_kv": [8], "block_table": torch.zeros(1, 1).int()}


@pytest.mark.parametrize(
    ("queries", "keys", "arguments"),
    [
        (5, 16, PAGED),  # more than one query needs pages of 128
        (1, 24, PAGED | {"block_size": 24}),
        (1, 1024, PAGED | {"block_size": 1024}),
        (1, 16, PAGED | {"block_size": 0}),
        (1, 16, PAGED | {"actual_seq_lengths_kv": None}),
        (1, 16, PAGED | {"actual_seq_lengths_kv": [17]}),
        (1, 16, PAGED | {"block_table": torch.zeros(1, 1)}),
        (1, 16, PAGED | {"input_layout": "BSND"}),  # wants (block, block_size, all heads)
        (5, 8, {"input_layout": "BNSD", "sparse_mode": 3, "atten_mask": torch.zeros(5, 8, dtype=torch.bool)}),
        (5, 8, {"input_layout": "BNSD", "atten_mask": torch.zeros(5, 8)}),
        (5, 8, {"input_layout": "BNSD", "num_key_value_heads": 3}),
    ],
)
def test_what_a_card_refuses_is_refused(queries: int, keys: int, arguments: dict[str, Any]) -> None:
    q, k, v = make(batch=1, queries=queries, keys=keys)
    if arguments["input_layout"] == "BSND":
        q = q.transpose(1, 2)
    with pytest.raises(RuntimeError, match="561002"):
        ops.fused_infer_attention_score(q, k, v, num_heads=4, **arguments)


@pytest.mark.parametrize("totals", [None, [4, 2], [4, 9]])
def test_lengths_of_sequences_end_to_end_are_totals(totals: list[int] | None) -> None:
    q, k, v = (TO_LAYOUT["TND"](x) for x in make(batch=2, queries=4, keys=8))
    with pytest.raises(RuntimeError, match="561002"):
        ops.fused_infer_attention_score(
            q, k, v, num_heads=4, input_layout="TND", actual_seq_lengths=totals, actual_seq_lengths_kv=[8, 16]
        )
