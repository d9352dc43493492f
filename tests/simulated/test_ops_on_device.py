"""Attention, rotary embeddings and softmaxes through the real torch_npu, autograd and all, against the CPU."""

from __future__ import annotations

from typing import Any

PREAMBLE = """
import itertools, torch, torch_npu
import torch.nn.functional as F
torch.manual_seed(0)
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}

def compare(function, *tensors, grad=True):
    "function of tensors on the CPU and on the NPU: results and gradients."
    found = []
    for device in ("cpu", "npu"):
        given = [x.to(device).requires_grad_(grad and x.is_floating_point()) for x in map(torch.clone, tensors)]
        out = function(device, *given)
        leaves = [x for x in given if x.requires_grad]
        grads = torch.autograd.grad(out.float().square().sum(), leaves) if grad else ()
        found.append([x.detach().cpu() for x in (out, *grads)])
    close = TOLERANCE[tensors[0].dtype]
    torch.testing.assert_close(found[1], found[0], rtol=close, atol=close)
"""

SCALED_DOT_PRODUCT = """
def attention(mask=None, **options):
    def run(device, q, k, v):
        m = None if mask is None else mask.to(device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=q.size(1) != k.size(1), **options)
    return run

shapes = [(6, 8), (2, 1, 6, 8), (2, 4, 6, 8), (2, 1, 1, 8), (1, 6, 8)]
for dtype, kv_heads, grad in itertools.product(TOLERANCE, (4, 2), (True, False)):
    tensors = [torch.randn(2, n, s, 16).to(dtype) for n, s in ((4, 6), (kv_heads, 8), (kv_heads, 8))]
    compare(attention(), *tensors, grad=grad)
    compare(attention(scale=0.7), *tensors, grad=grad)
    compare(attention(is_causal=True), *tensors, grad=grad)
    for shape in shapes:
        keep = torch.rand(shape) < 0.7
        keep[..., 0] = True
        compare(attention(keep), *tensors, grad=grad)
        compare(attention(torch.randn(shape).to(dtype)), *tensors, grad=grad)

padded = torch.ones(2, 1, 6, 8, dtype=torch.bool)
padded[1, :, :3] = False
tensors = [torch.randn(2, 4, s, 16) for s in (6, 8, 8)]
compare(attention(padded), *tensors)
"""

DROPOUT = """
from torch.utils.checkpoint import checkpoint

q, k, v = (torch.randn(2, 4, 32, 16, device="npu", requires_grad=True) for _ in range(3))

def drop(*tensors):
    return F.scaled_dot_product_attention(*tensors, dropout_p=0.3)

def run(function=drop):
    out = function(q, k, v)
    return [out.detach(), *torch.autograd.grad(out.sum(), (q, k, v))]

torch.npu.manual_seed(5)
first, second = run(), run()
assert not torch.equal(first[0], second[0])
torch.npu.manual_seed(5)
assert all(map(torch.equal, run(), first))
torch.npu.manual_seed(5)
assert all(map(torch.equal, run(lambda *t: checkpoint(drop, *t, use_reentrant=False)), first))

torch.npu.manual_seed(2)
bits = torch_npu._npu_dropout_gen_mask(q, [2, 4, 32, 32], p=0.1, seed=2, offset=0, parallel=True, sync=False)
*_, seed, offset, numels = found = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.25, keep_prob=0.9)
assert (seed, offset, numels) == (2, 0, 2 * 4 * 32 * 32)
again = torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", scale=0.25, keep_prob=0.9, dropout_mask=bits, seed=2)
assert torch.equal(found[0], again[0])
assert all(map(torch.equal, *(torch.autograd.grad(x[0].sum(), (q, k, v)) for x in (found, again))))
"""

CUSTOM_OPS = """
def fused(name, scale=0.25, **options):
    def run(device, q, k, v):
        if device == "cpu":
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
        hide = torch.ones(2048, 2048, dtype=torch.bool, device=device).triu(1)
        arguments = dict(atten_mask=hide, scale=scale, sparse_mode=2)
        return getattr(torch_npu, name)(q, k, v, 4, "BNSD", **arguments, **options)[0]
    return run

def rotary(device, x, cos, sin):
    if device == "npu":
        return torch_npu.npu_rotary_mul(x, cos, sin)
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin

def softmax(device, x, mask):
    if device == "npu":
        return torch_npu.npu_scaled_masked_softmax(x, mask, 0.5, False)
    return (x.float() * 0.5).masked_fill(mask, -10000).softmax(-1).to(x.dtype)

def inference(device, q, k, v):
    if device == "cpu":
        return F.scaled_dot_product_attention(q, k, v, scale=0.25)
    return torch_npu.npu_fused_infer_attention_score(q, k, v, num_heads=4, input_layout="BNSD", scale=0.25)[0]

for dtype in TOLERANCE:
    q, k, v = (torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3))
    for name in ("npu_fusion_attention", "npu_fusion_attention_v2", "npu_fusion_attention_v3"):
        compare(fused(name), q, k, v)
    compare(rotary, q, *(torch.randn(2, 1, 8, 16).to(dtype) for _ in range(2)))
    compare(softmax, torch.randn(2, 2, 32, 32).to(dtype), torch.rand(2, 1, 32, 32) < 0.5)
    compare(inference, q, k, v, grad=False)

pse = torch.randn(2, 4, 8, 8, device="npu", requires_grad=True)
sink = torch.zeros(4, device="npu", requires_grad=True)
q, k, v = (torch.randn(2, 4, 8, 16, device="npu") for _ in range(3))
torch_npu.npu_fusion_attention(q, k, v, 4, "BNSD", pse=pse, sink=sink)[0].square().sum().backward()
assert pse.grad.abs().sum() > 0 and sink.grad.abs().sum() > 0

query, key = torch.randn(2, 2, 5, 4, 64, device="npu")
cos = torch.ones(2, 5, 1, 64, device="npu")
before = query.clone()
torch_npu.npu_apply_rotary_pos_emb(query, key, cos, cos)
assert torch.equal(query, torch_npu.npu_rotary_mul(before, cos, cos))
"""

SHAPES = """
def same(op, *given, **named):
    "What the simulated kernel returns against what torch_npu itself says that the op returns."
    def on(device, x):
        return x.to(device) if isinstance(x, torch.Tensor) else x
    found, expected = (
        op(*(on(d, x) for x in given), **{n: on(d, x) for n, x in named.items()}) for d in ("npu", "meta")
    )
    found, expected = ((x,) if isinstance(x, torch.Tensor) else x for x in (found, expected))
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert type(a) is type(b) and (not isinstance(a, torch.Tensor) or (a.shape, a.dtype) == (b.shape, b.dtype)), op
    return found

for dtype in TOLERANCE:
    for layout, shape in {"BNSD": (2, 4, 8, 16), "BSND": (2, 8, 4, 16), "BSH": (2, 8, 64), "SBH": (8, 2, 64)}.items():
        q, k, v, dy = (torch.randn(shape).to(dtype) for _ in range(4))
        out, top, total, *_ = same(torch_npu.npu_fusion_attention, q, k, v, 4, layout)
        saved = dict(softmax_max=top, softmax_sum=total, attention_in=out)
        same(torch_npu.npu_fusion_attention_grad, q, k, v, dy, 4, layout, **saved)
        if layout != "SBH":
            arguments = dict(num_heads=4, input_layout=layout)
            same(torch_npu.npu_prompt_flash_attention, q, k, v, **arguments)
            same(torch_npu.npu_fused_infer_attention_score, q, k, v, **arguments, softmax_lse_flag=True)
            same(torch_npu.npu_fused_infer_attention_score, q, k, v, **arguments)
    same(torch_npu.npu_fused_infer_attention_score, *(torch.randn(2, 4, 8, 16).to(dtype) for _ in range(3)),
         num_heads=4, input_layout="BNSD_BSND")
    x, cos = torch.randn(2, 5, 4, 64).to(dtype), torch.randn(2, 5, 1, 64).to(dtype)
    same(torch_npu.npu_rotary_mul, x, cos, cos)
    same(torch_npu.npu_apply_rotary_pos_emb, x, x, cos, cos)
    same(torch_npu.npu_scaled_masked_softmax, torch.randn(1, 2, 32, 32).to(dtype), torch.rand(1, 1, 32, 32) < 0.5)
"""

WITHOUT_COMPUTING = """
q, k, v = (torch.randn(2, 4, 64, 16, device="npu", requires_grad=True) for _ in range(3))
for options in ({}, {"is_causal": True}, {"dropout_p": 0.5}):
    F.scaled_dot_product_attention(q, k, v, **options).sum().backward()
ends = [20, 64]
rows = [x.detach().flatten(0, 1).transpose(0, 1).contiguous().requires_grad_() for x in (q, k, v)]
torch_npu.npu_fusion_attention(
    *rows, 8, "TND", actual_seq_qlen=ends, actual_seq_kvlen=ends, keep_prob=0.5
)[0].sum().backward()
assert rows[1].grad.shape == rows[1].shape and rows[1].grad.device.type == "npu"
"""


SPARSE = """
table = torch.nn.Embedding(5, 2, sparse=True).npu()
table(torch.tensor([3, 1, 3]).npu()).sum().backward()
gradient = table.weight.grad.coalesce()
assert gradient.indices().tolist() == [[1, 3]] and gradient.values().tolist() == [[1, 1], [2, 2]]
assert torch.eye(3).npu().to_sparse().indices().tolist() == [[0, 1, 2], [0, 1, 2]]
"""


def test_results_gradients_seeds_and_shapes(simulated: Any) -> None:
    simulated(PREAMBLE + SCALED_DOT_PRODUCT + DROPOUT + CUSTOM_OPS + SHAPES + SPARSE)


def test_attention_without_computing(simulated: Any) -> None:
    simulated(PREAMBLE + WITHOUT_COMPUTING, compute="shapes")
