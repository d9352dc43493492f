"""The simulated npu_fusion_attention against softmax(q k^T) v written out, and its gradients against autograd's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from npukit.simulate.ops import attention, dropout_mask

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
COMPRESSED = torch.ones(2048, 2048, dtype=torch.bool).triu(1)


def plain(q: Tensor, k: Tensor, v: Tensor, scale: float, hide: Tensor | None = None, **extra: Any) -> Tensor:
    """Attention on (batch, head, sequence, depth), in fp32."""
    k, v = (x.float().repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q.float() @ k.mT * scale + extra.get("bias", 0.0)
    if hide is not None:
        scores = scores.masked_fill(hide, float("-inf"))
    if "sink" in extra:
        scores = torch.cat((scores, extra["sink"].view(1, -1, 1, 1).expand(*scores.shape[:3], 1)), -1)
    weights = scores.softmax(-1).nan_to_num()[..., : k.size(2)]
    return (weights * extra.get("keep", 1.0)) @ v


def in_layout(x: Tensor, layout: str) -> Tensor:
    x = x.detach()
    return {
        "BNSD": lambda: x,
        "BSND": lambda: x.transpose(1, 2),
        "BSH": lambda: x.transpose(1, 2).flatten(2),
        "SBH": lambda: x.permute(2, 0, 1, 3).flatten(2),
        "TND": lambda: x.transpose(1, 2).flatten(0, 1),
    }[layout]().contiguous()


def make(
    batch: int = 2, kv_heads: int = 2, queries: int = 9, keys: int = 9, depth: int = 16, v_depth: int = 16,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Query, key, value and a gradient of the output, of four heads."""
    torch.manual_seed(7)
    shapes = (4, queries, depth), (kv_heads, keys, depth), (kv_heads, keys, v_depth), (4, queries, v_depth)
    q, k, v, dy = (torch.randn(batch, *shape).to(dtype) for shape in shapes)
    return q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), dy


def check(tensors: tuple[Tensor, ...], expected: Tensor, layout: str = "BNSD", **arguments: Any) -> tuple[Any, ...]:
    """Forward and backward against `expected` and its gradients, and shapes without data against shapes with."""
    q, k, v, dy = tensors
    wanted = torch.autograd.grad(expected, (q, k, v), dy.float(), retain_graph=True)
    close = {"rtol": TOLERANCE[q.dtype], "atol": TOLERANCE[q.dtype], "check_dtype": False}
    given = [in_layout(x, layout) for x in (q, k, v, dy)]
    actual = attention.fusion_attention(*given[:3], q.size(1), layout, **arguments)
    out, top, total, _, seed, offset, numels = actual
    assert out.dtype == q.dtype and top.dtype == total.dtype == torch.float32 and out.is_contiguous()
    torch.testing.assert_close(out, in_layout(expected, layout), **close)
    saved = {"softmax_max": top, "softmax_sum": total, "attention_in": out, "seed": seed, "offset": offset}
    grads = attention.fusion_attention_grad(*given, q.size(1), layout, **saved, numels=numels, **_renamed(arguments))
    for grad, want, x in zip(grads, wanted, (q, k, v), strict=False):
        assert grad.dtype == x.dtype and grad.is_contiguous()
        torch.testing.assert_close(grad, in_layout(want, layout), **close)
    same_on_meta(given, layout, q.size(1), arguments, actual, saved, grads)
    return (*actual, *grads)


def _renamed(arguments: dict[str, Any]) -> dict[str, Any]:
    """The backward calls the scale scale_value, and has no mask given from outside."""
    kept = {name: value for name, value in arguments.items() if name not in ("scale", "dropout_mask")}
    return kept | {"scale_value": arguments.get("scale", 1.0)}


def same_on_meta(
    given: list[Tensor], layout: str, heads: int, arguments: dict[str, Any], actual: Any, saved: Any, grads: Any
) -> None:
    """Shapes and dtypes without data."""
    meta = {name: x.to("meta") if isinstance(x, Tensor) else x for name, x in arguments.items()}
    tensors = [x.to("meta") for x in given]
    again = attention.fusion_attention(*tensors[:3], heads, layout, **meta)
    grads_again = attention.fusion_attention_grad(
        *tensors, heads, layout, **{n: x.to("meta") if isinstance(x, Tensor) else x for n, x in saved.items()},
        **_renamed(meta),
    )  # fmt: skip
    for real, shape in zip((*actual[:4], *grads), (*again[:4], *grads_again), strict=True):
        assert (real is None) == (shape is None)
        assert real is None or (real.shape, real.dtype, real.stride()) == (shape.shape, shape.dtype, shape.stride())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("layout", ["BNSD", "BSND", "BSH", "SBH"])
def test_layouts_and_dtypes(layout: str, dtype: torch.dtype) -> None:
    q, k, v, dy = make(dtype=dtype)
    actual = check((q, k, v, dy), plain(q, k, v, 0.25), layout, scale=0.25)
    scores = q.float() @ k.float().repeat_interleave(2, 1).mT * 0.25
    assert actual[1].shape == (2, 4, 9, 8)
    lse = actual[1].double() + actual[2].double().log()
    torch.testing.assert_close(lse[..., 3].float(), scores.logsumexp(-1), rtol=1e-2, atol=1e-2)


def distance(queries: int, keys: int) -> Tensor:
    return torch.arange(keys) - torch.arange(queries).unsqueeze(1)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("queries, keys", [(9, 9), (6, 9), (9, 6)])
@pytest.mark.parametrize("mode", range(7))
def test_sparse_modes(mode: int, queries: int, keys: int, dtype: torch.dtype) -> None:
    tensors = make(queries=queries, keys=keys, dtype=dtype)
    d, end = distance(queries, keys), keys - queries
    per_batch = torch.rand(2, 1, queries, keys) < 0.3
    prefix = torch.tensor([5, 6]).view(2, 1, 1, 1)
    hide, arguments = {
        0: ((d > 2) | (d < -3), {"atten_mask": (d > 2) | (d < -3), "pre_tockens": 3, "next_tockens": 2}),
        1: (per_batch, {"atten_mask": per_batch.to(torch.uint8), "pre_tockens": 1, "next_tockens": 1}),
        2: (d > 0, {"atten_mask": COMPRESSED}),
        3: (d > end, {"atten_mask": COMPRESSED}),
        4: ((d > end + 1) | (d < end - 4), {"atten_mask": COMPRESSED, "pre_tockens": 4, "next_tockens": 1}),
        5: (per_batch, {"atten_mask": per_batch, "prefix": [5, 6]}),
        6: ((d > end) & (torch.arange(keys) >= prefix), {"atten_mask": COMPRESSED, "prefix": [5, 6]}),
    }[mode]
    assert isinstance(hide, Tensor)
    check(tensors, plain(*tensors[:3], 0.3, hide), scale=0.3, sparse_mode=mode, **arguments)


@pytest.mark.parametrize("shape", [(9, 9), (1, 1, 9, 9), (2, 1, 9, 9), (2, 4, 9, 9)])
def test_mask_shapes(shape: tuple[int, ...]) -> None:
    tensors, hide = make(), torch.rand(shape) < 0.4
    check(tensors, plain(*tensors[:3], 1.0, hide), atten_mask=hide)


def test_without_a_mask_the_sparse_mode_is_ignored() -> None:
    tensors = make()
    check(tensors, plain(*tensors[:3], 1.0), sparse_mode=2, next_tockens=0)


@pytest.mark.parametrize("sink", [False, True])
def test_a_row_that_sees_nothing_gives_zeros_and_finite_gradients(sink: bool) -> None:
    tensors, hide = make(), torch.zeros(2, 1, 9, 9, dtype=torch.bool)
    hide[1, 0, :3] = True
    extra = {"sink": torch.zeros(4)} if sink else {}
    actual = check(tensors, plain(*tensors[:3], 1.0, hide, **extra), atten_mask=hide, inner_precise=2, **extra)
    assert not actual[0][1, :, :3].any()
    assert all(x.isfinite().all() for x in actual if isinstance(x, Tensor))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_values_may_be_shorter_than_keys(dtype: torch.dtype) -> None:
    tensors = make(depth=24, v_depth=8, dtype=dtype)
    check(
        tensors, plain(*tensors[:3], 0.2, distance(9, 9) > 0), "BSND", scale=0.2, atten_mask=COMPRESSED, sparse_mode=2
    )


@pytest.mark.parametrize("shape", [(2, 4, 9, 9), (1, 4, 9, 9), (2, 4, 1, 9)])
def test_pse_is_added_before_scaling(shape: tuple[int, ...]) -> None:
    tensors, pse = make(), torch.randn(shape, requires_grad=True)
    expected = plain(*tensors[:3], 0.25, bias=pse * 0.25)
    dpse = check(tensors, expected, scale=0.25, pse=pse.detach())[10]
    torch.testing.assert_close(dpse, torch.autograd.grad(expected, pse, tensors[3])[0], rtol=1e-4, atol=1e-5)


def test_pse_types_of_version_2() -> None:
    q, k, v, _ = (x.detach() for x in make())
    pse, slopes = torch.randn(2, 4, 9, 9), torch.rand(4)
    away = (distance(9, 9) - 3).abs().float()
    for pse_type, given, bias in (
        (0, pse, pse),
        (1, pse, pse * 0.5),
        (2, slopes, -slopes.view(4, 1, 1) * away),
        (3, slopes, -slopes.view(4, 1, 1) * away.sqrt()),
    ):
        start = {"q_start_idx": [4], "kv_start_idx": [1]}
        out = attention.fusion_attention_v2(q, k, v, 4, "BNSD", pse=given, pse_type=pse_type, scale=0.5, **start)[0]
        torch.testing.assert_close(out, plain(q, k, v, 0.5, bias=bias), rtol=1e-4, atol=1e-5)


def test_a_sink_takes_part_in_the_softmax_and_has_a_gradient() -> None:
    tensors, sink = make(), torch.randn(4, requires_grad=True)
    expected = plain(*tensors[:3], 0.25, sink=sink)
    dsink = check(tensors, expected, scale=0.25, sink=sink.detach())[11]
    torch.testing.assert_close(dsink, torch.autograd.grad(expected, sink, tensors[3])[0], rtol=1e-4, atol=1e-5)


def test_dropout_is_the_same_in_forward_and_backward() -> None:
    tensors = make()
    torch.manual_seed(3)
    actual = attention.fusion_attention(*(x.detach() for x in tensors[:3]), 4, "BNSD", keep_prob=0.8)
    seed, offset, numels = actual[4:]
    assert numels == 2 * 4 * 9 * 9
    keep = dropout_mask.keep_mask(numels, 0.8, seed, offset)
    assert 0.6 < keep.float().mean() < 0.95
    torch.manual_seed(3)
    check(tensors, plain(*tensors[:3], 1.0, keep=keep.view(2, 4, 9, 9) / 0.8), keep_prob=0.8)


def test_a_dropout_mask_from_outside_is_a_packed_one() -> None:
    q, k, v, _ = (x.detach() for x in make())
    keep = torch.rand(2, 4, 9, 9) < 0.7
    packed = dropout_mask.pack(keep)
    assert packed.numel() == math.ceil(648 / 128) * 16 and packed.dtype == torch.uint8
    out = attention.fusion_attention(q, k, v, 4, "BNSD", keep_prob=0.7, dropout_mask=packed, seed=5, offset=4)
    torch.testing.assert_close(out[0], plain(q, k, v, 1.0, keep=keep / 0.7), rtol=1e-4, atol=1e-5)
    assert out[4:] == (5, 4, 648)


LENGTHS = (([3, 8, 8, 12], [4, 9, 13, 20]), ([5, 12, 0], [5, 20, 0]), ([12], [20]))


@pytest.mark.parametrize("q_ends, kv_ends", LENGTHS)
@pytest.mark.parametrize("mode", [None, 0, 2, 3, 4, 6, 7, 8])
@pytest.mark.parametrize("keep_prob, dtype", [*((1.0, dtype) for dtype in TOLERANCE), (0.7, torch.float32)])
def test_ragged(q_ends: list[int], kv_ends: list[int], mode: int | None, keep_prob: float, dtype: torch.dtype) -> None:
    tensors = make(batch=1, queries=12, keys=20, dtype=dtype)
    torch.manual_seed(11)
    seed, _ = dropout_mask.draw_seed()
    sizes = zip(q_ends, [0, *q_ends], kv_ends, [0, *kv_ends], strict=False)
    scores = sum(4 * max(0, q - q_from) * max(0, k - k_from) for q, q_from, k, k_from in sizes)
    keep = dropout_mask.keep_mask(scores, keep_prob, seed, 0)
    pieces: list[Tensor] = []
    at, used, last = (0, 0), 0, len(q_ends) - 1
    for index, ends in enumerate(zip(q_ends, kv_ends, strict=True)):
        if ends[0] <= at[0]:
            at = (at[0], max(ends[1], at[1]))
            continue
        queries, keys = ends[0] - at[0], ends[1] - at[1]
        d, end, count = distance(queries, keys), keys - queries, 4 * queries * keys
        band = (d > end + 1) | (d < end - 6)
        hide = {
            None: None, 0: d > 5, 2: d > 0, 3: d > end, 4: band, 6: (d > end) & (torch.arange(keys) >= 2),
            7: band if index == last else d > end, 8: band if index == 0 else d > 0,
        }[mode]  # fmt: skip
        drop = keep[used : used + count].view(1, 4, queries, keys) / keep_prob
        used += count
        q, k, v = tensors[0][:, :, at[0] : ends[0]], *(x[:, :, at[1] : ends[1]] for x in tensors[1:3])
        pieces.append(plain(q, k, v, 0.25, hide, keep=drop))
        at = ends
    arguments = {} if mode is None else {"sparse_mode": mode, "atten_mask": COMPRESSED, "pre_tockens": 6}
    if mode == 0:
        arguments |= {"atten_mask": distance(12, 20) > 5, "pre_tockens": 12, "next_tockens": 5}
    elif mode is not None:
        arguments |= {"next_tockens": 1, "prefix": [2] * len(q_ends)}
    torch.manual_seed(11)
    lengths = {"actual_seq_qlen": q_ends, "actual_seq_kvlen": kv_ends, "keep_prob": keep_prob, "scale": 0.25}
    actual = check(tensors, torch.cat(pieces, 2), "TND", **lengths, **arguments)
    assert actual[1].shape == (12, 4, 8)


def test_ragged_statistics_lie_by_head_or_by_token() -> None:
    q, k, v, _ = (in_layout(x, "TND") for x in make(batch=1, kv_heads=4, queries=5, keys=5))
    arguments = {"actual_seq_qlen": [2, 5], "actual_seq_kvlen": [2, 5], "scale": 0.25}
    scores = [torch.einsum("qnd,knd->nqk", q[s], k[s]) * 0.25 for s in (slice(0, 2), slice(2, 5))]
    tops = [x.amax(-1) for x in scores]
    by_token = attention.fusion_attention(q, k, v, 4, "TND", **arguments, softmax_layout="TND")[1][..., 0]
    torch.testing.assert_close(by_token, torch.cat([x.T for x in tops]), rtol=1e-5, atol=1e-5)
    by_head = attention.fusion_attention(q, k, v, 4, "TND", **arguments)[1][..., 0].flatten()
    torch.testing.assert_close(by_head, torch.cat([x.flatten() for x in tops]), rtol=1e-5, atol=1e-5)


def test_version_2_joins_rotary_parts_to_the_heads() -> None:
    q, k, v, dy = make(depth=24, v_depth=8)
    expected = plain(q, k, v, 0.2)
    dq, dk, dv = torch.autograd.grad(expected, (q, k, v), dy)
    head, rope = ([x.detach()[..., part].contiguous() for x in (q, k)] for part in (slice(0, 16), slice(16, 24)))
    common = {"query_rope": rope[0], "key_rope": rope[1]}
    actual = attention.fusion_attention_v2(*head, v.detach(), 4, "BNSD", scale=0.2, **common)
    torch.testing.assert_close(actual[0], expected.detach(), rtol=1e-4, atol=1e-5)
    grads = attention.fusion_attention_grad_v2(
        *head, v.detach(), dy, 4, "BNSD", scale_value=0.2, **common,
        softmax_max=actual[1], softmax_sum=actual[2], attention_in=actual[0],
    )  # fmt: skip
    for grad, want in zip(grads, (dq[..., :16], dk[..., :16], dv, None, dq[..., 16:], dk[..., 16:]), strict=False):
        assert (grad is None) == (want is None)
        assert want is None or torch.allclose(grad, want, rtol=1e-4, atol=1e-5)


def test_version_3_takes_its_arguments_by_position_and_returns_seeds_in_tensors() -> None:
    q, k, v, dy = make()
    expected = plain(q, k, v, 0.5, distance(9, 9) > 0)
    wanted = torch.autograd.grad(expected, (q, k, v), dy)
    q, k, v = (x.detach() for x in (q, k, v))
    ints = 2147483647, 0, 0, None, None, None, 2, True, False, "", None
    actual = attention.fusion_attention_v3(q, k, v, 4, "BNSD", None, None, COMPRESSED, 0.5, 1.0, *ints)
    torch.testing.assert_close(actual[0], expected.detach(), rtol=1e-4, atol=1e-5)
    assert [x.shape for x in actual[4:]] == [(1,), (1,)] and actual[4].dtype == torch.long
    grads = attention.fusion_attention_grad_v3(
        q, k, v, dy, 4, "BNSD", atten_mask=COMPRESSED, softmax_max=actual[1], softmax_sum=actual[2],
        attention_in=actual[0], scale_value=0.5, sparse_mode=2, seed=actual[4], offset=actual[5],
    )  # fmt: skip
    torch.testing.assert_close(grads[:3], wanted, rtol=1e-4, atol=1e-5)
