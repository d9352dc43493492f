"""Ops of torch that torch_npu has and the CPU has not, and the backward ops that torch_npu put beside torch's own."""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.simulate.ops.common import dtype_of, gradients, wide
from npukit.simulate.ops.registry import kernel, traits


def _channel(values: Tensor, like: Tensor) -> Tensor:
    """Values of channels, in the shape that broadcasts over [batch, channels, …]."""
    return wide(values).reshape(1, -1, *(1 for _ in range(like.dim() - 2)))


def _over_channels(x: Tensor) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


@kernel("aten::histc", out=["aten::histc.out"])
def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """Counts in x's own type, whole numbers included, as CANN and CUDA have it; the CPU counts fractions only."""
    if x.is_meta:
        return x.new_empty(bins)
    exact = x if x.dtype in (torch.float32, torch.float64) else x.double()
    return torch.histc(exact, bins, min, max).to(x.dtype)


@kernel("aten::batch_norm_stats")
def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / sqrt(variance + eps) of each channel, in fp32."""
    variance, mean = torch.var_mean(x.float(), _over_channels(x), correction=0)
    return mean, (variance + eps).rsqrt()


@kernel("batch_norm_reduce")
def batch_norm_reduce(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Sum and sum of squares of each channel, in fp32; eps is not used."""
    if x.dim() < 2:
        raise RuntimeError("The dim input tensor [self] must more than 1.")
    return x.float().sum(_over_channels(x)), x.float().pow(2).sum(_over_channels(x))


@kernel("batch_norm_gather_stats_update")
def batch_norm_gather_stats_update(
    x: Tensor, sums: Tensor, squares: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and inverse deviation from all ranks' sums; the running values follow, the variance uncorrected."""
    total = counts.sum()
    mean = wide(sums).reshape(-1, sums.shape[-1]).sum(0) / total
    variance = wide(squares).reshape(-1, squares.shape[-1]).sum(0) / total - mean * mean
    _follow(running_mean, mean, momentum)
    _follow(running_var, variance, momentum)
    return mean.to(sums.dtype), (variance + eps).rsqrt().to(sums.dtype)


def _follow(running: Tensor | None, value: Tensor, momentum: float) -> None:
    if running is not None:
        running.copy_(momentum * value + (1 - momentum) * wide(running))


@kernel("aten::batch_norm_gather_stats_with_counts")
def batch_norm_gather_stats_with_counts(
    x: Tensor, mean: Tensor, invstd: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    momentum: float, eps: float, counts: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mean and inverse deviation of all ranks' batches together; the running variance is the unbiased one."""
    weight = counts.float().reshape(-1, 1)
    total = weight.sum()
    means, variances = wide(mean), wide(invstd).pow(-2) - eps
    joint = (means * weight).sum(0) / total
    spread = ((variances + (means - joint).pow(2)) * weight).sum(0)
    _follow(running_mean, joint, momentum)
    _follow(running_var, spread / (total - 1), momentum)
    dtype = torch.float16 if x.dtype == mean.dtype == torch.float16 else torch.float32
    return joint.to(dtype), (spread / total + eps).rsqrt().to(dtype)


@kernel("aten::batch_norm_elemt", out=["aten::batch_norm_elemt.out"])
def batch_norm_elemt(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    """(x - mean) * invstd * weight + bias."""
    y = (wide(x) - _channel(mean, x)) * _channel(invstd, x)
    y = y if weight is None else y * _channel(weight, x)
    return (y if bias is None else y + _channel(bias, x)).to(x.dtype)


@kernel("aten::batch_norm_backward_reduce")
def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, input_g: bool, weight_g: bool,
    bias_g: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """(sum of dy, sum of dy * (x - mean), gradient of weight, gradient of bias); None where not asked for."""
    sum_dy = wide(grad).sum(_over_channels(x))
    sum_dy_xmu = (wide(grad) * (wide(x) - _channel(mean, x))).sum(_over_channels(x))
    dtype = mean.dtype if weight is None else weight.dtype
    dweight, dbias = (sum_dy_xmu * wide(invstd)).to(dtype), sum_dy.to(dtype)
    sums = (sum_dy.to(mean.dtype), sum_dy_xmu.to(mean.dtype)) if input_g else (None, None)
    return (*sums, dweight if weight_g else None, dbias if bias_g else None)


@kernel("aten::batch_norm_backward_elemt")
def batch_norm_backward_elemt(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor | None, sum_dy: Tensor,
    sum_dy_xmu: Tensor, count: Tensor,
) -> Tensor:  # fmt: skip
    """Gradient of x from the sums over all ranks and the number of elements of each."""
    total = count.sum()
    scale = _channel(invstd, x)
    spread = (wide(x) - _channel(mean, x)) * scale.pow(2) * _channel(sum_dy_xmu, x) / total
    dx = (wide(grad) - _channel(sum_dy, x) / total - spread) * scale
    return (dx if weight is None else dx * _channel(weight, x)).to(x.dtype)


@kernel("aten::_masked_scale")
def masked_scale(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    """x * mask * scale: the backward of fused dropout."""
    return (wide(x) * mask * scale).to(x.dtype)


@kernel("aten::mm.dtype", "aten::bmm.dtype", out=["aten::mm.dtype_out", "aten::bmm.dtype_out"])
def product_in_dtype(a: Tensor, b: Tensor, out_dtype: int) -> Tensor:
    """a @ b, rounded once to another dtype than the factors'."""
    return (wide(a) @ wide(b)).to(dtype_of(out_dtype))


@kernel("aten::addmm.dtype", "aten::baddbmm.dtype", out=["aten::addmm.dtype_out", "aten::baddbmm.dtype_out"])
def added_product_in_dtype(
    x: Tensor, a: Tensor, b: Tensor, out_dtype: int, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta * x + alpha * (a @ b), rounded once to another dtype than the factors'."""
    return (beta * wide(x) + alpha * (wide(a) @ wide(b))).to(dtype_of(out_dtype))


@kernel("repeat_interleave_backward_tensor")
def repeat_interleave_backward_tensor(grad: Tensor, x: Tensor, repeats: Tensor, dim: int | None = None) -> Tensor:
    """The sum of each element's copies, where each element has its own number of them."""
    axis = (-1 if dim is None else dim) % grad.dim()
    length = x.numel() if dim is None else x.shape[axis]
    ends = repeats.to(torch.int64).expand(length).cumsum(0)
    owner = torch.searchsorted(ends, torch.arange(grad.shape[axis], device=grad.device), right=True)
    shape = [length if d == axis else n for d, n in enumerate(grad.shape)]
    total = wide(grad).new_zeros(shape).index_add(axis, owner.clamp(max=length - 1), wide(grad))
    return total.to(grad.dtype).reshape(x.shape)


@kernel("npu_renorm_backward")
def renorm_backward(grad: Tensor, x: Tensor, p: float, dim: int, maxnorm: float) -> Tensor:
    """Gradient of renorm: only slices over the norm are scaled."""

    def renormed(values: Tensor) -> Tensor:
        dims = [d for d in range(values.dim()) if d != dim % values.dim()]
        norm = torch.linalg.vector_norm(values, p, dims, keepdim=True)
        return torch.where(norm > maxnorm, values * (maxnorm / (norm + 1e-7)), values)

    return gradients(renormed, [wide(x)], wide(grad))[0].to(grad.dtype)


@kernel("stft_backward")
def stft_backward(
    grad: Tensor, x: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, normalized: bool = False, onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:  # fmt: skip
    """Gradient of the signal of a short-time Fourier transform."""

    def forward(signal: Tensor) -> Tensor:
        y = torch.stft(
            signal, n_fft, hop_length, win_length, window, center=False, normalized=normalized, onesided=onesided,
            return_complex=True,
        )  # fmt: skip
        return y if grad.is_complex() else torch.view_as_real(y)

    return gradients(forward, [x], grad)[0]


def unscale(grads: list[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Multiply the gradients by inv_scale; found_inf becomes 1 if one of them is not finite."""
    for grad in grads:
        if not grad.isfinite().all():
            found_inf.fill_(1)
        grad.mul_(inv_scale.to(grad.dtype))


_UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
if torch.__version__ < "2.3":
    kernel(_UNSCALE)(unscale)
else:  # the CPU has it
    traits(_UNSCALE, host_tensors=True)
