"""Attention, rotary embeddings and softmaxes on NPU tensors, autograd and all, against the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torch_npu
from tests.on_npu.conftest import since
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}
FUSED = [
    name
    for name in ("npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3")
    if hasattr(torch_npu, name)
]
MASKS = ((6, 8), (2, 1, 6, 8), (2, 4, 6, 8), (2, 1, 1, 8), (1, 6, 8))
shapes_are_foreseen = since("2.7", "several operators have no shapes for the meta device, or wrong ones")
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def compare(function: Callable[..., Tensor], *tensors: Tensor, grad: bool = True) -> None:
    """The results and gradients of `function(device, *tensors)` on the NPU are those of the CPU in fp32.

    In bf16, torch 2.8's own kernel for the backward pass of attention ends the process on aarch64.
    """
    dtype = tensors[0].dtype
    results = []
    for device, computed_in in (("cpu", torch.float32), ("npu", dtype)):
        given = [x.to(device, computed_in if x.is_floating_point() else x.dtype, copy=True) for x in tensors]
        leaves = [x.requires_grad_() for x in given if grad and x.is_floating_point()]
        out = function(device, *given)
        upstream = torch.linspace(-2, 2, out.numel()).view(out.shape).to(dtype).to(out)
        grads = torch.autograd.grad(out, leaves, upstream) if grad else ()
        results.append([x.detach().cpu().to(dtype) for x in (out, *grads)])
    torch.testing.assert_close(results[1], results[0], rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def attention(mask: Tensor | None = None, **options: Any) -> Callable[..., Tensor]:
    def run(device: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        there = None if mask is None else mask.to(device, q.dtype if mask.is_floating_point() else mask.dtype)
        groups: dict[str, Any] = {"enable_gqa": True} if q.size(1) != k.size(1) else {}
        if groups and torch.__version__ < "2.5":
            pytest.skip("before torch 2.5, attention has no groups of heads")
        return F.scaled_dot_product_attention(q, k, v, attn_mask=there, **groups, **options)

    return run


@since("2.6", "transformers 5 needs it")
def test_packed_rows_in_groups() -> None:
    from npukit.llm.data.collate import Collator
    from npukit.llm.data.rows import packed_row
    from npukit.llm.models.attention import packed_attention

    batch = Collator(True, 0, 24, group=4)([packed_row([np.ones(13, np.int32), np.ones(8, np.int32)], 24, pad_id=0)])
    borders = {name: batch[name] for name in ("row_ends", "groups")}

    def run(_: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return packed_attention(nn.Module(), q, k, v, None, **borders)[0]

    compare(run, *(torch.randn(1, heads, 24, 16).half() for heads in (4, 2, 2)))


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "kv_heads", [4, pytest.param(2, marks=since("2.6", "a mask of numbers goes with no shared heads"))]
)
@every_dtype
def test_scaled_dot_product(dtype: torch.dtype, kv_heads: int, grad: bool) -> None:
    tensors = [torch.randn(2, n, s, 16).to(dtype) for n, s in ((4, 6), (kv_heads, 8), (kv_heads, 8))]
    compare(attention(), *tensors, grad=grad)
    compare(attention(scale=0.7), *tensors, grad=grad)
    compare(attention(is_causal=True), *tensors, grad=grad)
    for shape in MASKS:
        keep = torch.rand(shape) < 0.7
        keep[..., 0] = True
        compare(attention(keep), *tensors, grad=grad)
        compare(attention(torch.randn(shape).to(dtype)), *tensors, grad=grad)


@since("2.5", "torch's own attention gives NaN")
def test_rows_that_see_nothing() -> None:
    keep = torch.ones(2, 1, 6, 8, dtype=torch.bool)
    keep[1, :, :3] = False
    compare(attention(keep), *(torch.randn(2, 4, length, 16) for length in (6, 8, 8)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 1), (1, 5), (3, 3)])
def test_one_batch_stands_for_all(queries: int, keys: int, causal: bool) -> None:
    shapes = ((queries, 4), (keys, 2), (keys, 2))
    compare(attention(is_causal=causal), *(torch.randn(batch, heads, 16, 8) for batch, heads in shapes))


def test_dropout_follows_the_seed_and_is_the_same_when_it_is_computed_again() -> None:
    q, k, v = leaves = [torch.randn(2, 4, 32, 16, device="npu", requires_grad=True) for _ in range(3)]

    def drop(*tensors: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*tensors, dropout_p=0.3)

    def run(function: Callable[..., Tensor] = drop) -> list[Tensor]:
        out = function(q, k, v)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]

    torch.npu.manual_seed(5)
    first, second = run(), run()
    assert not torch.equal(first[0], second[0])
    for function in (drop, lambda *tensors: checkpoint(drop, *tensors, use_reentrant=False)):
        torch.npu.manual_seed(5)
        assert all(map(torch.equal, run(function), first))


@since("2.7", "there is no such argument")
def test_a_dropout_mask_that_is_given_is_the_one_of_its_seed() -> None:
    leaves = [torch.randn(2, 4, 32, 16, device="npu", requires_grad=True) for _ in range(3)]
    torch.npu.manual_seed(2)
    bits = torch_npu._npu_dropout_gen_mask(
        leaves[0], [2, 4, 32, 32], p=0.1, seed=2, offset=0, parallel=True, sync=False
    )
    options = {"scale": 0.25, "keep_prob": 0.9}
    *_, seed, offset, numels = actual = torch_npu.npu_fusion_attention(*leaves, 4, "BNSD", **options)
    assert (seed, offset, numels) == (2, 0, 2 * 4 * 32 * 32)
    again = torch_npu.npu_fusion_attention(*leaves, 4, "BNSD", **options, dropout_mask=bits, seed=2)
    assert torch.equal(actual[0], again[0])
    assert all(map(torch.equal, *(torch.autograd.grad(x[0].sum(), leaves) for x in (actual, again))))


@pytest.mark.parametrize("name", FUSED)
@every_dtype
def test_fusion_attention(dtype: torch.dtype, name: str) -> None:
    def run(device: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if device == "cpu":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.25)
        hide = torch.ones(2048, 2048, dtype=torch.bool, device=device).triu(1)
        actual = getattr(torch_npu, name)(q, k, v, 4, "BNSD", atten_mask=hide, scale=0.25, sparse_mode=2)
        return actual[0]

    compare(run, *(torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3)))


@since("2.6", "there is no sink")
def test_pse_and_sink_have_gradients() -> None:
    pse = torch.randn(2, 4, 8, 8, device="npu", requires_grad=True)
    sink = torch.zeros(4, device="npu", requires_grad=True)
    q, k, v = (torch.randn(2, 4, 8, 16, device="npu") for _ in range(3))
    torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", pse=pse, sink=sink)[0].square().sum().backward()
    assert pse.grad is not None and pse.grad.abs().sum() > 0
    assert sink.grad is not None and sink.grad.abs().sum() > 0


def inference(device: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if device == "cpu":
        return F.scaled_dot_product_attention(q, k, v, scale=0.25)
    actual = torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4, input_layout="BNSD", scale=0.25)
    return actual[0]


def rotary(device: str, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if device == "npu":
        return torch_npu.npu_rotary_mul(x, cos, sin)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def softmax(device: str, x: Tensor, mask: Tensor) -> Tensor:
    if device == "npu":
        return torch_npu.npu_scaled_masked_softmax(x, mask, 0.5, False)
    return (x.float() * 0.5).masked_fill(mask, -10000).softmax(-1).to(x.dtype)


@every_dtype
def test_inference_rotary_and_softmax(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3))
    compare(inference, q, k, v, grad=False)
    compare(rotary, q, *(torch.randn(2, 1, 8, 16).to(dtype) for _ in range(2)))
    compare(softmax, torch.randn(2, 2, 32, 32).to(dtype), torch.rand(2, 1, 32, 32) < 0.5)


def test_rotary_in_place() -> None:
    query, key = torch.randn(2, 2, 5, 4, 64, device="npu")
    cos = torch.ones(2, 5, 1, 64, device="npu")
    before = query.clone()
    torch_npu.npu_apply_rotary_pos_emb(query, key, cos, cos)
    assert torch.equal(query, torch_npu.npu_rotary_mul(before, cos, cos))


def foreseen(op: Callable[..., Any], *given: Any, **named: Any) -> tuple[Any, ...]:
    """What an operator returns, after a look that torch_npu itself expects those shapes and types."""

    def on(device: str) -> tuple[Any, ...]:
        def there(x: Any) -> Any:
            return x.to(device) if isinstance(x, Tensor) else x

        result = op(*map(there, given), **{name: there(x) for name, x in named.items()})
        return (result,) if isinstance(result, Tensor) else tuple(result)

    actual, expected = on("npu"), on("meta")
    for one, other in zip(actual, expected, strict=True):
        assert type(one) is type(other)
        assert not isinstance(one, Tensor) or (one.shape, one.dtype) == (other.shape, other.dtype)
    return actual


@pytest.mark.parametrize(
    ("layout", "shape"), [("BNSD", (2, 4, 8, 16)), ("BSND", (2, 8, 4, 16)), ("BSH", (2, 8, 64)), ("SBH", (8, 2, 64))]
)
@shapes_are_foreseen
@every_dtype
def test_attention_has_the_shapes_that_torch_npu_foresees(
    dtype: torch.dtype, layout: str, shape: tuple[int, ...]
) -> None:
    q, k, v, dy = (torch.randn(shape).to(dtype) for _ in range(4))
    out, top, total, *_ = foreseen(torch_npu.npu_fusion_attention, q, k, v, 4, layout)
    saved = {"softmax_max": top, "softmax_sum": total, "attention_in": out}
    foreseen(torch_npu.npu_fusion_attention_grad, q, k, v, dy, 4, layout, **saved)
    if layout != "SBH":
        arguments = {"num_heads": 4, "input_layout": layout}
        foreseen(torch_npu.npu_prompt_flash_attention, q, k, v, **arguments)
        foreseen(torch_npu.npu_fused_infer_attention_score, q, k, v, **arguments, softmax_lse_flag=True)
        foreseen(torch_npu.npu_fused_infer_attention_score, q, k, v, **arguments)


@shapes_are_foreseen
@every_dtype
def test_others_have_the_shapes_that_torch_npu_foresees(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3))
    foreseen(torch_npu.npu_fused_infer_attention_score, q, k, v, num_heads=4, input_layout="BNSD_BSND")
    x, cos = torch.randn(2, 5, 4, 64).to(dtype), torch.randn(2, 5, 1, 64).to(dtype)
    foreseen(torch_npu.npu_rotary_mul, x, cos, cos)
    foreseen(torch_npu.npu_apply_rotary_pos_emb, x, x, cos, cos)
    scores, hide = torch.randn(1, 2, 32, 32).to(dtype), torch.rand(1, 1, 32, 32) < 0.5
    foreseen(torch_npu.npu_scaled_masked_softmax, scores, hide)
