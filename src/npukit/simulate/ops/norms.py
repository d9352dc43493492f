"""Layer, RMS, deep and group normalization, alone or fused with an addition, an activation or a quantization."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import gradients, quantized_by, row_quantized, wide, wide_or_none
from npukit.simulate.ops.registry import kernel


def _over(gamma: Tensor) -> tuple[int, ...]:
    """The dimensions that a norm with this weight reduces."""
    return tuple(range(-gamma.dim(), 0))


def _rms(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    rstd = x.pow(2).mean(_over(gamma), keepdim=True).add(epsilon).rsqrt()
    return x * rstd * wide(gamma), rstd.float()


def _layer(x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(_over(gamma), keepdim=True)
    rstd = (x - mean).pow(2).mean(_over(gamma), keepdim=True).add(epsilon).rsqrt()
    return (x - mean) * rstd * wide(gamma) + wide(beta), mean.float(), rstd.float()


def _layer_backward(grad: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor) -> tuple[Tensor, ...]:
    """Gradients of x, gamma and beta in fp32, from the statistics that the forward pass kept."""
    normal, weighted = (x - mean) * rstd, grad * wide(gamma)
    dims = _over(gamma)
    inner = weighted.mean(dims, keepdim=True) + normal * (weighted * normal).mean(dims, keepdim=True)
    leading = tuple(range(x.dim() - gamma.dim()))
    return (weighted - inner) * rstd, _sum(grad * normal, leading), _sum(grad, leading)


def _sum(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x.sum(dims) if dims else x


@kernel("npu_rms_norm")
def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """y = x / sqrt(mean(x^2) + eps) * gamma over gamma's dimensions; rstd in fp32, kept as dimensions of one."""
    y, rstd = _rms(wide(x), gamma, epsilon)
    return y.to(x.dtype), rstd


@kernel("npu_rms_norm_backward")
def rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """dx in x's dtype, dgamma in fp32 whatever gamma's dtype is."""
    grad, normal = wide(dy), wide(x) * rstd
    weighted = grad * wide(gamma)
    dx = (weighted - normal * (weighted * normal).mean(_over(gamma), keepdim=True)) * rstd
    return dx.to(x.dtype), _sum(grad * normal, tuple(range(x.dim() - gamma.dim()))).float()


@kernel("npu_gemma_rms_norm")
def gemma_rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """RMS norm with the weight 1 + gamma."""
    return rms_norm(x, wide(gamma) + 1, epsilon)


@kernel("npu_add_rms_norm")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """RMS norm of x1 + x2: (y, rstd, x1 + x2)."""
    total = wide(x1) + wide(x2)
    y, rstd = _rms(total, gamma, epsilon)
    return y.to(x1.dtype), rstd, total.to(x1.dtype)


@kernel("npu_add_rms_norm_cast")
def add_rms_norm_cast(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, ...]:
    """RMS norm of x1 + x2: (y widened to fp32, y, rstd, x1 + x2)."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    return y.float(), y, rstd, total


@kernel("npu_add_rms_norm_v2")
def add_rms_norm_in_place(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> Tensor:
    """x1 becomes the RMS norm of x1 + x2, and x2 becomes the sum; returns rstd."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


@kernel("npu_add_rms_norm_v2_functional")
def add_rms_norm_functional(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, ...]:
    """RMS norm of x1 + x2 in the order of the in-place op: (rstd, y, x1 + x2)."""
    y, rstd, total = add_rms_norm(x1, x2, gamma, epsilon)
    return rstd, y, total


@kernel("npu_rms_norm_quant")
def rms_norm_quant(
    x: Tensor, gamma: Tensor, beta: Tensor, scale: Tensor, offset: Tensor,
    epsilon: float = 1e-6, *, dst_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """round((rms_norm(x) + beta) * scale + offset): here the scale multiplies."""
    y = _rms(wide(x), gamma, epsilon)[0] + wide(beta)
    return quantized_by(y, scale, offset, False, dst_dtype)


@kernel("npu_rms_norm_quant_v2")
def rms_norm_quant_v2(
    x: Tensor, gamma: Tensor, scale: Tensor, *, offset: Tensor | None = None, beta: Tensor | None = None,
    epsilon: float = 1e-6, div_mode: bool = True, dst_dtype: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """round((rms_norm(x) + beta) / scale + offset) and rstd; div_mode False multiplies by the scale."""
    y, rstd = _rms(wide(x), gamma, epsilon)
    y = y if beta is None else y + wide(beta)
    return quantized_by(y, scale, offset, div_mode, dst_dtype), rstd


@kernel("npu_add_rms_norm_quant")
def add_rms_norm_quant(
    x1: Tensor, x2: Tensor, gamma: Tensor, scales1: Tensor, zero_points1: Tensor | None,
    beta: Tensor | None = None, scales2: Tensor | None = None, zero_points2: Tensor | None = None,
    *, axis: int = -1, epsilon: float = 1e-6, div_mode: bool = True, dst_type: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """RMS norm of x1 + x2 quantized once by each scale, and the sum; without scales2 the second output is zeros."""
    total = wide(x1) + wide(x2)
    y = _rms(total, gamma, epsilon)[0]
    y = y if beta is None else y + wide(beta)
    first = quantized_by(y, scales1, zero_points1, div_mode, dst_type)
    second = torch.zeros_like(first) if scales2 is None else quantized_by(y, scales2, zero_points2, div_mode, dst_type)
    return first, second, total.to(x1.dtype)


@kernel("npu_add_rms_norm_dynamic_quant")
def add_rms_norm_dynamic_quant(
    x1: Tensor, x2: Tensor, gamma: Tensor, *, smooth_scale1: Tensor | None = None, smooth_scale2: Tensor | None = None,
    beta: Tensor | None = None, epsilon: float = 1e-6, output_mask: list[bool] | None = None,
    y_dtype: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """RMS norm of x1 + x2 quantized by row: (y1, y2, sum, scale1, scale2); what the mask leaves out is one number."""
    total = wide(x1) + wide(x2)
    y = _rms(total, gamma, epsilon)[0]
    y = y if beta is None else y + wide(beta)
    wanted = output_mask or [True, smooth_scale1 is not None and smooth_scale2 is not None]
    outputs: list[tuple[Tensor, Tensor]] = []
    for want, smooth in zip(wanted, (smooth_scale1, smooth_scale2), strict=True):
        values, scale = row_quantized(y if smooth is None else y * wide(smooth), y_dtype)
        outputs.append((values, scale) if want else (values.new_empty(()), scale.new_empty(())))
    return outputs[0][0], outputs[1][0], total.to(x1.dtype), outputs[0][1], outputs[1][1]


@kernel("npu_add_layer_norm")
def add_layer_norm(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor, epsilon: float = 1e-5, additional_output: bool = False
) -> tuple[Tensor, ...]:
    """Layer norm of x1 + x2: (y, mean, rstd, x1 + x2); inputs of two dtypes give fp32. The sum is always computed."""
    total = wide(x1) + wide(x2)
    y, mean, rstd = _layer(total, gamma, beta, epsilon)
    dtype = x1.dtype if x1.dtype == x2.dtype else torch.float32
    return y.to(dtype), mean, rstd, total.to(dtype)


@kernel("npu_add_layer_norm_backward")
def add_layer_norm_backward(
    dy: Tensor | None, x1: Tensor, x2: Tensor, rstd: Tensor, mean: Tensor, gamma: Tensor, dsum: Tensor | None
) -> tuple[Tensor, ...]:
    """(dx, dx, dgamma, dbeta): both inputs get the same gradient, the sum's own included; dgamma and dbeta in fp32."""
    total = wide(x1) + wide(x2)
    grad = torch.zeros_like(total) if dy is None else wide(dy)
    dx, dgamma, dbeta = _layer_backward(grad, total, gamma, mean, rstd)
    dx = (dx if dsum is None else dx + wide(dsum)).to(x1.dtype)
    return dx, dx.clone(), dgamma.float(), dbeta.float()


@kernel("npu_deep_norm")
def deep_norm(
    x: Tensor, gx: Tensor, beta: Tensor, gamma: Tensor, alpha: float = 0.3, epsilon: float = 1e-6
) -> tuple[Tensor, ...]:
    """Layer norm of alpha * x + gx: (mean, rstd, y); beta comes before gamma."""
    y, mean, rstd = _layer(wide(x) * alpha + wide(gx), gamma, beta, epsilon)
    return mean, rstd, y.to(x.dtype)


@kernel("npu_deep_norm_backward")
def deep_norm_backward(
    dy: Tensor, x: Tensor, gx: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, alpha: float = 0.3
) -> tuple[Tensor, ...]:
    """(dx, dgx, dbeta, dgamma), the last two in fp32."""
    dgx, dgamma, dbeta = _layer_backward(wide(dy), wide(x) * alpha + wide(gx), gamma, mean, rstd)
    return (dgx * alpha).to(x.dtype), dgx.to(gx.dtype), dbeta.float(), dgamma.float()


@kernel("npu_layer_norm_eval")
def layer_norm_eval(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Layer norm without the statistics."""
    return F.layer_norm(wide(x), normalized_shape, wide_or_none(weight), wide_or_none(bias), eps).to(x.dtype)


@kernel("npu_layernorm_grad")
def layernorm_grad(
    grad: Tensor, x: Tensor, normalized_shape: list[int], mean: Tensor, rstd: Tensor,
    weight: Tensor | None, bias: Tensor | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight and bias, the last two in x's dtype."""
    gamma = x.new_ones(normalized_shape) if weight is None else weight
    kept = [*x.shape[: x.dim() - len(normalized_shape)], *(1 for _ in normalized_shape)]
    dx, dgamma, dbeta = _layer_backward(wide(grad), wide(x), gamma, wide(mean).reshape(kept), wide(rstd).reshape(kept))
    return dx.to(x.dtype), dgamma.to(gamma.dtype), dbeta.to(gamma.dtype)


def _group_swish(x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float, scale: float) -> Tensor:
    y = F.group_norm(x, groups, weight, bias, eps)
    return y * torch.sigmoid(scale * y)


def _group_statistics(x: Tensor, groups: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    grouped = x.reshape(x.shape[0], groups, -1)
    variance = grouped.var(-1, correction=0)
    return grouped.mean(-1).to(dtype), variance.add(eps).rsqrt().to(dtype)


@kernel("npu_group_norm_silu")
def group_norm_silu(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, group: int, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """silu(group_norm(x)), mean and rstd in the weight's dtype; not differentiable in torch_npu."""
    y = F.silu(F.group_norm(wide(x), group, wide_or_none(weight), wide_or_none(bias), eps)).to(x.dtype)
    dtype = x.dtype if weight is None or bias is None else weight.dtype
    return y, *_group_statistics(wide(x), group, eps, dtype)


@kernel("npu_group_norm_swish")
def group_norm_swish(
    x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, eps: float | None = 1e-5, swish_scale: float | None = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """y * sigmoid(scale * y) of y = group_norm(x), with mean and rstd in the weight's dtype."""
    eps, scale = 1e-5 if eps is None else eps, 1.0 if swish_scale is None else swish_scale
    y = _group_swish(wide(x), wide(weight), wide(bias), num_groups, eps, scale)
    return y.to(x.dtype), *_group_statistics(wide(x), num_groups, eps, weight.dtype)


@kernel("npu_group_norm_swish_grad")
def group_norm_swish_grad(
    grad: Tensor, x: Tensor, num_groups: int, weight: Tensor, bias: Tensor, mean: Tensor, rstd: Tensor,
    grad_input_mask: list[bool], swish_scale: float | None = 1.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight and bias from the kept statistics; eps is not passed on, so it must not be needed."""
    scale = 1.0 if swish_scale is None else swish_scale

    def normalized(values: Tensor) -> Tensor:
        grouped = values.reshape(values.shape[0], num_groups, -1)
        return ((grouped - wide(mean).unsqueeze(-1)) * wide(rstd).unsqueeze(-1)).reshape(values.shape)

    def swish(normal: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        channels = (1, -1, *(1 for _ in range(x.dim() - 2)))
        y = normal * gamma.reshape(channels) + beta.reshape(channels)
        return y * torch.sigmoid(scale * y)

    normal = normalized(wide(x))
    dnormal, dweight, dbias = gradients(swish, [normal, wide(weight), wide(bias)], wide(grad))
    by_group, normal = (t.reshape(x.shape[0], num_groups, -1) for t in (dnormal, normal))
    inner = by_group.mean(-1, keepdim=True) + normal * (by_group * normal).mean(-1, keepdim=True)
    dx = (by_group - inner) * wide(rstd).unsqueeze(-1)
    return dx.reshape(x.shape).to(x.dtype), dweight.to(weight.dtype), dbias.to(bias.dtype)


@kernel("npu_normalize_batch")
def normalize_batch(x: Tensor, seq_len: Tensor, normalize_type: int = 0) -> Tensor:
    """(x - mean) / (std + 1e-5) of the first seq_len frames, per feature (0) or over all of them (1)."""
    inside = torch.arange(x.shape[-1], device=x.device) < seq_len.reshape(-1, *(1 for _ in range(x.dim() - 1)))
    dims = (-1,) if normalize_type == 0 else tuple(range(1, x.dim()))
    values = wide(x) * inside
    count = inside.expand(x.shape).sum(dims, keepdim=True)
    mean = values.sum(dims, keepdim=True) / count
    variance = ((wide(x) - mean) * inside).pow(2).sum(dims, keepdim=True) / (count - 1)
    return ((wide(x) - mean) / (variance.sqrt() + 1e-5)).to(x.dtype)
