"""torch_npu's operators with a plain PyTorch equivalent for each: one row per operator.

The self-test runs all of them on a device, and the tests compare the simulated kernels with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

ALL = (torch.float32, torch.float16, torch.bfloat16)
EXACT = (torch.float32,)


@dataclass(frozen=True)
class Case:
    """A kernel, its arguments, and the expected results: None for an output that is not compared."""

    op: str
    inputs: Callable[[], tuple[Any, ...]]
    plain: Callable[..., Any]
    options: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = ALL
    meta: bool = True  # torch_npu's own meta function, if there is one, agrees


@dataclass(frozen=True)
class Gradient:
    """A backward kernel: a plain forward formula, and how the kernel is called with the incoming gradient.

    `wanted` contains, for each output of the kernel, the index of the formula's input whose gradient it is.
    """

    op: str
    inputs: Callable[[], tuple[Any, ...]]
    plain: Callable[..., Tensor]
    call: Callable[..., tuple[Any, ...]]
    wanted: tuple[int | None, ...] = (0,)
    options: dict[str, Any] = field(default_factory=dict)
    dtypes: tuple[torch.dtype, ...] = ALL


def x(*shape: int) -> Tensor:
    return torch.randn(shape)


def ints(low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(low, high, shape, dtype=dtype)


def rms(t: Tensor, gamma: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    dims = list(range(-gamma.dim(), 0))
    rstd = 1 / torch.sqrt((t * t).mean(dims, keepdim=True) + eps)
    return t * rstd * gamma, rstd


def statistics(t: Tensor, dims: int, eps: float) -> tuple[Tensor, Tensor]:
    over = list(range(-dims, 0))
    return t.mean(over, keepdim=True), 1 / torch.sqrt(t.var(over, correction=0, keepdim=True) + eps)


def add_layer_norm(a: Tensor, b: Tensor, gamma: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    return F.layer_norm(a + b, gamma.shape, gamma, beta), *statistics(a + b, gamma.dim(), 1e-5), a + b


def deep_norm(a: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3) -> tuple[Tensor, ...]:
    mean, rstd = statistics(alpha * a + gx, gamma.dim(), 1e-6)
    return mean, rstd, (alpha * a + gx - mean) * rstd * gamma + beta


def group_swish(t: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.group_norm(t, groups, weight, bias)
    return y * torch.sigmoid(y)


def group_statistics(t: Tensor, groups: int) -> list[Tensor]:
    return [s.squeeze(-1) for s in statistics(t.reshape(t.shape[0], groups, -1), 1, 1e-5)]


def halves(t: Tensor, dim: int = -1) -> tuple[Tensor, ...]:
    return t.chunk(2, dim)


def geglu(t: Tensor, dim: int = -1, approximate: int = 1, left: bool = False) -> tuple[Tensor, Tensor]:
    first, second = halves(t, dim)
    active, other = (first, second) if left else (second, first)
    y = F.gelu(active, approximate="tanh" if approximate else "none")
    return other * y, y


def clipped(t: Tensor) -> Tensor:
    gate, value = t[..., ::2].clamp(max=7), t[..., 1::2].clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (value + 1)


def cross_entropy(t: Tensor, target: Tensor, weight: Tensor | None, reduction: str, ignore: int, smooth: float) -> Any:
    loss = F.cross_entropy(t, target, weight, ignore_index=ignore, label_smoothing=smooth, reduction=reduction)
    return loss.reshape(-1), t.log_softmax(-1), None, None


def cross_entropy_inputs(reduction: str) -> tuple[Any, ...]:
    return x(6, 5), ints(0, 5, 6), torch.rand(5), reduction, 2, 0.1


def soft_cross_entropy(t: Tensor, labels: Tensor) -> Tensor:
    return -(labels * t.log_softmax(-1)).sum(-1)


def bmm(a: Tensor, b: Tensor, _: list[int]) -> Tensor:
    return a @ b


def grouped(rows: list[Tensor], weight: list[Tensor]) -> list[Tensor]:
    return [torch.cat((rows[0][:3] @ weight[0][0], rows[0][3:] @ weight[0][1]))]


def gating(t: Tensor, _: None, k: int) -> tuple[Tensor, ...]:
    values, experts = t.softmax(-1).topk(k)
    return values, experts.int(), torch.arange(t.shape[0] * k).reshape(k, -1).T.int()


def lstm(t: Tensor, weight: Tensor, bias: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One layer step by step, with torch's gate order."""
    out: list[tuple[Tensor, Tensor]] = []
    h, c = h[0], c[0]
    for step in t:
        i, f, g, o = (torch.cat((step, h), -1) @ weight + bias).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        out.append((h, c))
    hs, cs = (torch.stack(states) for states in zip(*out, strict=True))
    return hs, hs, cs


def lstm_inputs() -> tuple[Tensor, ...]:
    return x(4, 2, 3), x(8, 20), x(20), x(1, 2, 5), x(1, 2, 5)


def gru(t: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> Tensor:
    out = []
    for step in t:
        xr, xz, xn = (step @ w_ih + b_ih).chunk(3, -1)
        hr, hz, hn = (h @ w_hh + b_hh).chunk(3, -1)
        n = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
        z = torch.sigmoid(xz + hz)
        h = (1 - z) * n + z * h
        out.append(h)
    return torch.stack(out)


def gru_inputs() -> tuple[Tensor, ...]:
    return x(4, 2, 3), x(2, 5), x(3, 15), x(5, 15), x(15), x(15)


def dequantized_product(t: Tensor, weight: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return t @ ((weight.to(t.dtype) + offset) * scale)


FLAGS = (True, 1, 0.0, True, False, False)
CASES = [
    Case("npu_rms_norm", lambda: (x(2, 3, 8), x(8)), rms),
    Case("npu_rms_norm", lambda: (x(2, 3, 8), x(3, 8), 1e-2), rms),
    Case("npu_gemma_rms_norm", lambda: (x(2, 8), x(8)), lambda t, g: rms(t, 1 + g)),
    Case("npu_add_rms_norm", lambda: (x(2, 8), x(2, 8), x(8)), lambda a, b, g: (*rms(a + b, g), a + b)),
    Case(
        "npu_add_rms_norm_cast",
        lambda: (x(2, 8), x(2, 8), x(8)),
        lambda a, b, g: (rms(a + b, g)[0], *rms(a + b, g), a + b),
    ),
    Case("npu_add_layer_norm", lambda: (x(2, 3, 8), x(2, 3, 8), x(8), x(8)), add_layer_norm),
    Case("npu_deep_norm", lambda: (x(2, 3, 8), x(2, 3, 8), x(8), x(8)), deep_norm),
    Case("npu_layer_norm_eval", lambda: (x(2, 3, 8), [8], x(8), x(8)), F.layer_norm),
    Case(
        "npu_group_norm_silu",
        lambda: (x(2, 6, 5), x(6), x(6), 3),
        lambda t, w, b, g: (F.silu(F.group_norm(t, g, w, b)), *group_statistics(t, g)),
    ),
    Case(
        "npu_group_norm_swish",
        lambda: (x(2, 6, 5), 3, x(6), x(6)),
        lambda t, g, w, b: (group_swish(t, g, w, b), *group_statistics(t, g)),
    ),
    Case("npu_swiglu", lambda: (x(3, 8),), lambda t: F.silu(halves(t)[0]) * halves(t)[1]),
    Case("npu_swiglu", lambda: (x(4, 3), 0), lambda t, d: F.silu(halves(t, d)[0]) * halves(t, d)[1]),
    Case("npu_geglu", lambda: (x(3, 8),), geglu),
    Case("npu_geglu", lambda: (x(3, 8), -1, 0, True), geglu),
    Case("npu_gelu", lambda: (x(3, 8),), F.gelu),
    Case("npu_gelu", lambda: (x(3, 8),), lambda t: F.gelu(t, approximate="tanh"), {"approximate": "tanh"}),
    Case("npu_gelu_mul", lambda: (x(3, 8),), lambda t: F.gelu(halves(t)[0]) * halves(t)[1]),
    Case("npu_fast_gelu", lambda: (x(3, 8),), lambda t: t * torch.sigmoid(1.702 * t)),
    Case("npu_silu", lambda: (x(3, 8),), F.silu),
    Case("npu_mish", lambda: (x(3, 8),), F.mish),
    Case("npu_clipped_swiglu", lambda: (x(3, 8) * 5,), clipped),
    *(
        Case(
            "npu_cross_entropy_loss",
            partial(cross_entropy_inputs, reduction),
            cross_entropy,
            meta=False,  # torch_npu gives the optional outputs shapes that they do not have
        )
        for reduction in ("mean", "sum", "none")
    ),
    Case("npu_softmax_cross_entropy_with_logits", lambda: (x(4, 5), x(4, 5)), soft_cross_entropy, meta=False),
    Case("npu_linear", lambda: (x(4, 8), x(5, 8), x(5)), F.linear),
    Case("npu_bmmV2", lambda: (x(2, 4, 8), x(2, 8, 5), []), bmm),
    Case("npu_confusion_transpose", lambda: (x(2, 3, 8), [0, 2, 1, 3], [2, 3, 4, 2], False),
         lambda t, p, s, _: t.reshape(s).permute(p)),
    Case("npu_confusion_transpose", lambda: (x(2, 3, 8), [1, 0, 2], [6, 8], True),
         lambda t, p, s, _: t.permute(p).reshape(s)),
    Case("npu_grouped_matmul", lambda: ([x(5, 4)], [x(2, 4, 3)]), grouped,
         {"group_list": torch.tensor([3, 5]), "split_item": 3, "group_type": 0}),
    Case("npu_grouped_matmul_add", lambda: (x(2, 4, 3), x(5, 4), x(5, 3), torch.tensor([3, 5])),
         lambda y, a, w, _: y + torch.stack((a[:3].T @ w[:3], a[3:].T @ w[3:])), dtypes=EXACT, meta=False),
    Case("npu_ffn", lambda: (x(5, 4), x(4, 6), x(6, 4), "relu"), lambda t, a, b, _: F.relu(t @ a) @ b),
    Case("npu_weight_quant_batchmatmul", lambda: (x(3, 8), ints(-8, 8, 8, 5, dtype=torch.int8), x(5), x(5)),
         dequantized_product, meta=False),
    Case("npu_moe_gating_top_k_softmax", lambda: (x(4, 6), None, 2), gating, dtypes=EXACT),
    Case("npu_lstm", lambda: (*lstm_inputs()[:3], x(0), *lstm_inputs()[3:], *FLAGS, False, False),
         lambda t, w, b, _, h, c, *flags: (*lstm(t, w, b, h, c), *[None] * 5)),
    Case("npu_gru", lambda: (*gru_inputs(), x(0), *FLAGS),
         lambda *a: (gru(*a[:6]), gru(*a[:6]), *[None] * 4)),
    Case("npu_conv2d", lambda: (x(1, 4, 6, 6), x(6, 2, 3, 3), x(6), [2, 2], [1, 1], [1, 1], 2), F.conv2d),
    Case("npu_conv3d", lambda: (x(1, 2, 4, 4, 4), x(3, 2, 2, 2, 2), x(3), [1], [0], [1], 1), F.conv3d),
    Case("npu_conv_transpose2d", lambda: (x(1, 4, 5, 5), x(4, 3, 3, 3), x(3), [1, 1], [1, 1], [2, 2], [1, 1], 1),
         lambda t, w, b, p, o, s, d, g: F.conv_transpose2d(t, w, b, s, p, o, g, d)),
    Case("npu_max.dim", lambda: (x(3, 8), 1), lambda t, d: (t.max(d).values, t.max(d).indices.int())),
    Case("npu_scatter_nd_update", lambda: (x(4, 3), torch.tensor([[2], [0]]), x(2, 3)),
         lambda t, i, u: t.index_put((i[:, 0],), u)),
    Case("npu_slice", lambda: (x(4, 6), [1, 2], [2, 3]), lambda t, o, s: t[1:3, 2:5]),
    Case("npu_indexing", lambda: (x(4, 6), [0, 1], [4, 5], [2, 1]), lambda t, b, e, s: t[::2, 1:5]),
    Case("npu_pad", lambda: (x(2, 3), [1, 0, 2, 1]), lambda t, p: F.pad(t, (2, 1, 1, 0))),
    Case("npu_sort_v2", lambda: (x(3, 8),), lambda t: t.sort(-1).values),
    Case("npu_one_hot", lambda: (ints(0, 5, 4, dtype=torch.int32), -1, 5),
         lambda t, _, n: F.one_hot(t.long(), n).float(), dtypes=EXACT),
    Case("npu_dtype_cast", lambda: (x(3), 5), lambda t, _: t.half(), dtypes=EXACT),
    Case("npu_quantize", lambda: (x(3, 4), torch.full((4,), 0.1), torch.ones(4, dtype=torch.int32), 1, -1),
         lambda t, s, z, *_: torch.round(t / s + z).clamp(-128, 127).to(torch.int8), dtypes=EXACT),
    Case("npu_dynamic_quant", lambda: (x(3, 4),),
         lambda t: (torch.round(t * 127 / t.abs().amax(-1, True)).to(torch.int8), t.abs().amax(-1) / 127), dtypes=EXACT,
         meta=False),
    Case("npu_anti_quant", lambda: (ints(-8, 8, 3, 4, dtype=torch.int8), x(4)), lambda t, s: (t.float() * s).half(),
         dtypes=EXACT),
    Case("npu_quant_matmul", lambda: (ints(-9, 9, 3, 8, dtype=torch.int8), ints(-9, 9, 8, 4, dtype=torch.int8), x(4)),
         lambda a, b, s: (a.float() @ b.float() * s).half(), {"output_dtype": 5}, dtypes=EXACT, meta=False),
]  # fmt: skip


def convolution_call(grad: Tensor, t: Tensor, weight: Tensor, bias: Tensor) -> tuple[Any, ...]:
    return t, grad, weight, [2, 2], [1, 1], [1, 1], 1, [True, True, True]


def cell(t: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor) -> Tensor:
    return lstm(t[None], torch.cat((w_ih, w_hh)), torch.zeros(w_ih.shape[1]), h[None], c[None])[0]


def cell_call(grad: Tensor, t: Tensor, w_ih: Tensor, w_hh: Tensor, h: Tensor, c: Tensor) -> tuple[Any, ...]:
    i, f, j, o = (t @ w_ih + h @ w_hh).chunk(4, -1)
    i, f, j, o = i.sigmoid()[None], f.sigmoid()[None], j.tanh()[None], o.sigmoid()[None]
    tanh = torch.tanh(f[0] * c + i[0] * j[0])[None]
    return grad, None, None, t, w_ih, w_hh, h, c, grad, h, c, i, j, f, o, tanh


def box_overlap(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Intersection over union, union and hull of centre boxes."""
    a1, a2, b1, b2 = a[:2] - a[2:] / 2, a[:2] + a[2:] / 2, b[:2] - b[2:] / 2, b[:2] + b[2:] / 2
    common = (torch.min(a2, b2) - torch.max(a1, b1)).clamp(min=0).prod(0)
    union = a[2:].prod(0) + b[2:].prod(0) - common
    return common / union, union, torch.max(a2, b2) - torch.min(a1, b1), (a[:2] - b[:2]).pow(2).sum(0)


def giou(a: Tensor, b: Tensor) -> Tensor:
    overlap, union, hull, _ = box_overlap(a, b)
    return (overlap - 1 + union / hull.prod(0)).unsqueeze(1)


def diou(a: Tensor, b: Tensor) -> Tensor:
    overlap, _, hull, distance = box_overlap(a, b)
    return (overlap - distance / hull.pow(2).sum(0)).unsqueeze(0)


def boxes() -> tuple[Tensor, Tensor]:
    return torch.rand(4, 5) + 1, torch.rand(4, 5) + 1


def chosen() -> Tensor:
    return torch.arange(8).reshape(4, 2) % 6


def sigmoid_weights(logits: Tensor) -> Tensor:
    picked = logits.sigmoid().gather(1, chosen())
    return picked / picked.sum(-1, keepdim=True) * 2


GRADIENTS = [
    Gradient("npu_rms_norm_backward", lambda: (x(2, 3, 8), x(8)), lambda t, g: rms(t, g)[0],
             lambda d, t, g: (d, t, g, rms(t.float(), g.float())[1]), (0, 1)),
    Gradient("npu_add_layer_norm_backward", lambda: (x(4, 8), x(4, 8), x(8), x(8)), lambda *a: add_layer_norm(*a)[0],
             lambda d, a, b, g, z: (d, a, b, *reversed(statistics(a.float() + b.float(), 1, 1e-5)), g, None),
             (0, 1, 2, 3)),
    Gradient("npu_deep_norm_backward", lambda: (x(4, 8), x(4, 8), x(8), x(8)), lambda *a: deep_norm(*a)[2],
             lambda d, a, b, z, g: (d, a, b, g, *statistics(a.float() * 0.3 + b.float(), 1, 1e-6)), (0, 1, 2, 3)),
    Gradient("npu_layernorm_grad", lambda: (x(4, 8), x(8), x(8)), lambda t, g, z: F.layer_norm(t, [8], g, z),
             lambda d, t, g, z: (d, t, [8], *statistics(t.float(), 1, 1e-5), g, z), (0, 1, 2)),
    Gradient("npu_group_norm_swish_grad", lambda: (x(2, 6, 5), x(6), x(6)), lambda t, w, b: group_swish(t, 3, w, b),
             lambda d, t, w, b: (d, t, 3, w, b, *group_statistics(t.float(), 3), [True] * 3), (0, 1, 2)),
    Gradient("npu_swiglu_backward", lambda: (x(3, 8),), lambda t: F.silu(halves(t)[0]) * halves(t)[1],
             lambda d, t: (d, t)),
    Gradient("npu_geglu_grad", lambda: (x(3, 8),), lambda t: geglu(t)[0], lambda d, t: (d, t, d)),
    Gradient("npu_gelu_backward", lambda: (x(3, 8),), F.gelu, lambda d, t: (d, t)),
    Gradient("npu_fast_gelu_backward", lambda: (x(3, 8),), lambda t: t * torch.sigmoid(1.702 * t), lambda d, t: (d, t)),
    Gradient("npu_silu_backward", lambda: (x(3, 8),), F.silu, lambda d, t: (d, t, t)),
    Gradient("npu_mish_backward", lambda: (x(3, 8),), F.mish, lambda d, t: (d, t)),
    Gradient("npu_cross_entropy_loss_backward", lambda: (x(6, 5),),
             lambda t: F.cross_entropy(t, torch.arange(6) % 5, ignore_index=2, label_smoothing=0.1).reshape(1),
             lambda d, t: (d, t.log_softmax(-1), torch.arange(6) % 5, None, None, None, "mean", 2, 0.1)),
    Gradient("l1_loss_backward", lambda: (x(3, 4), x(3, 4)), F.l1_loss, lambda d, t, u: (d, t, u, 1)),
    Gradient("kl_div_backward", lambda: (x(3, 4), torch.rand(3, 4)), lambda t, u: F.kl_div(t, u, reduction="sum"),
             lambda d, t, u: (d, t, u, 2)),
    Gradient("kl_div_target_backward", lambda: (x(3, 4), torch.rand(3, 4)),
             lambda t, u: F.kl_div(t, u, reduction="sum"), lambda d, t, u: (d, t, u, 2), (1,)),
    Gradient("npu_binary_cross_entropy_with_logits_backward", lambda: (x(3, 4), torch.rand(3, 4)),
             F.binary_cross_entropy_with_logits, lambda d, t, u: (d, t, u, None, None, 1)),
    Gradient("npu_linear_backward", lambda: (x(4, 8), x(5, 8)), F.linear, lambda d, t, w: (d, t, w), (0, 1)),
    *(Gradient("aten::matmul_backward", inputs, torch.matmul, lambda d, a, b: (d, a, b, [True, True]), (0, 1))
      for inputs in (lambda: (x(2, 3, 4), x(4, 5)), lambda: (x(2, 1, 3, 4), x(5, 4, 2)), lambda: (x(4), x(3, 4, 5)),
                     lambda: (x(3, 4), x(4)), lambda: (x(4), x(4)))),
    Gradient("npu_confusion_transpose_backward", lambda: (x(2, 3, 8),),
             lambda t: t.reshape(2, 3, 4, 2).permute(0, 2, 1, 3), lambda d, t: (d, [0, 2, 1, 3], [2, 3, 8], True)),
    Gradient("npu_confusion_transpose_backward", lambda: (x(2, 3, 8),), lambda t: t.permute(1, 2, 0).reshape(6, 8),
             lambda d, t: (d, [1, 2, 0], [2, 3, 8], False)),
    Gradient("npu_lstm_backward", lstm_inputs, lambda *a: lstm(*a)[0],
             lambda d, *a: (d, None, None, *a, *[d] * 8), (0, 1, 2, 3, 4)),
    Gradient("npu_lstm_cell_backward", lambda: (x(2, 3), x(3, 20), x(5, 20), x(2, 5), x(2, 5)), cell, cell_call,
             (0, 1, 2, None, None, 3, 4)),
    Gradient("npu_gru_backward", gru_inputs, gru,
             lambda d, t, h, wi, wh, bi, bh: (d, None, t, wi, wh, bi, bh, d, h, *[d] * 6), (2, 3, 0, 4, 5, 1)),
    Gradient("npu_conv2d_backward", lambda: (x(1, 2, 6, 6), x(3, 2, 3, 3), x(3)),
             lambda t, w, b: F.conv2d(t, w, b, 2, 1), convolution_call, (0, 1, 2)),
    Gradient("npu_giou_backward", boxes, giou, lambda d, a, b: (d, a, b, True), (0, 1), dtypes=EXACT),
    Gradient("npu_diou_backward", boxes, diou, lambda d, a, b: (d, a, b, True), (0, 1), dtypes=EXACT),
    Gradient("npu_max_backward", lambda: (x(3, 8),), lambda t: t.max(1).values,
             lambda d, t: (d, 1, t.max(1).indices.int(), [3, 8], False)),
    Gradient("repeat_interleave_backward_tensor", lambda: (x(3, 2),),
             lambda t: t.repeat_interleave(torch.tensor([2, 0, 3]), 0),
             lambda d, t: (d, t, torch.tensor([2, 0, 3]), 0)),
    Gradient("npu_renorm_backward", lambda: (x(3, 4),), lambda t: t.renorm(2, 0, 1.0), lambda d, t: (d, t, 2, 0, 1.0)),
    Gradient("npu_moe_gating_top_k_backward", lambda: (x(4, 6),), sigmoid_weights,
             lambda d, t: (t.float().sigmoid(), d, chosen()), options={"norm_type": 1, "routed_scaling_factor": 2.0}),
]  # fmt: skip
