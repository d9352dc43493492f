"""Features at places that are computed: regions of interest, and convolutions whose taps wander."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import gradients, wide
from npukit.simulate.ops.registry import kernel


def _bilinear(x: Tensor, batch: Tensor, y: Tensor, x_place: Tensor) -> Tensor:
    """x[batch, :, y, x] between pixels, as [channels, *places]; outside pixels count as zeros."""
    height, width = x.shape[-2:]
    row, column = y.floor(), x_place.floor()
    total: Tensor | None = None
    for dy in (0, 1):
        for dx in (0, 1):
            r, c = row + dy, column + dx
            share = (1 - (y - r).abs()) * (1 - (x_place - c).abs())
            inside = (r >= 0) & (r < height) & (c >= 0) & (c < width)
            taken = x.transpose(0, 1)[:, batch, r.clamp(0, height - 1).long(), c.clamp(0, width - 1).long()]
            part = taken * (share * inside)
            total = part if total is None else total + part
    assert total is not None
    return total


def _roi_align(x: Tensor, rois: Tensor, scale: float, height: int, width: int, samples: int, end_mode: int) -> Tensor:
    """Bilinear averages over the bins of each region, [regions, channels, height, width]."""
    batch, place = rois[:, 0].long(), rois[:, 1:] * scale
    if end_mode == 1:
        place = (rois[:, 1:] + rois.new_tensor([0, 0, 1, 1])) * scale
    elif end_mode >= 2:
        place = place - 0.5
    size = place[:, 2:] - place[:, :2]
    size = size if end_mode >= 2 else size.clamp(min=1)

    def steps(start: Tensor, length: Tensor, bins: int) -> Tensor:
        ticks = (torch.arange(bins * samples, device=x.device, dtype=x.dtype) + 0.5) / (bins * samples)
        return start.unsqueeze(1) + length.unsqueeze(1) * ticks

    ys, xs = steps(place[:, 1], size[:, 1], height), steps(place[:, 0], size[:, 0], width)
    rows, columns = x.shape[-2:]
    known = ((ys >= -1) & (ys <= rows)).unsqueeze(2) & ((xs >= -1) & (xs <= columns)).unsqueeze(1)
    y = ys.clamp(0, rows - 1).unsqueeze(2).expand(-1, -1, xs.shape[1])
    x_place = xs.clamp(0, columns - 1).unsqueeze(1).expand(-1, ys.shape[1], -1)
    values = _bilinear(x, batch[:, None, None].expand_as(y), y, x_place) * known
    return F.avg_pool2d(values.transpose(0, 1), samples)


@kernel("npu_roi_align")
def roi_align(
    x: Tensor, rois: Tensor, spatial_scale: float, pooled_height: int, pooled_width: int, sample_num: int,
    roi_end_mode: int,
) -> Tensor:  # fmt: skip
    """Averages of sample_num^2 points in each bin; end mode 1 counts the last pixel, 2 and 3 shift by half a pixel.

    A sample_num of 0 or less, the number that hardware takes from each region's size, is two here.
    """
    samples = sample_num if sample_num > 0 else 2
    y = _roi_align(wide(x), wide(rois), spatial_scale, pooled_height, pooled_width, samples, roi_end_mode)
    return y.to(x.dtype)


@kernel("npu_roi_alignbk")
def roi_align_backward(
    grad: Tensor, rois: Tensor, xdiff_shape: list[int], pooled_width: int, pooled_height: int, spatial_scale: float,
    sample_num: int, roi_end_mode: int | None = None,
) -> Tensor:  # fmt: skip
    """Gradient of the features; the end mode is 1 unless it is given."""
    samples = sample_num if sample_num > 0 else 2
    mode = 1 if roi_end_mode is None else roi_end_mode
    features = wide(grad).new_zeros(xdiff_shape)

    def forward(x: Tensor) -> Tensor:
        return _roi_align(x, wide(rois), spatial_scale, pooled_height, pooled_width, samples, mode)

    return gradients(forward, [features], wide(grad))[0].to(grad.dtype)


def _ps_roi_pool(x: Tensor, rois: Tensor, scale: float, groups: int, channels: int) -> Tensor:
    """Each bin of a region averages its own channel; rois are [batch, 5, number]."""
    entries = rois.permute(0, 2, 1).reshape(-1, 5)
    batch, valid = entries[:, 0].long(), (entries[:, 0] >= 0) & (entries[:, 0] < x.shape[0])
    start = entries[:, 1:3].round() * scale
    size = ((entries[:, 3:5].round() + 1) * scale - start).clamp(min=0.1) / groups

    def edges(first: Tensor, length: Tensor, limit: int) -> tuple[Tensor, Tensor]:
        step = torch.arange(groups, device=x.device, dtype=x.dtype)
        low = (first.unsqueeze(1) + step * length.unsqueeze(1)).floor().clamp(0, limit)
        high = (first.unsqueeze(1) + (step + 1) * length.unsqueeze(1)).ceil().clamp(0, limit)
        return low.long(), torch.maximum(low, high).long()

    top, bottom = (t[:, None, :, None] for t in edges(start[:, 1], size[:, 1], x.shape[2]))
    left, right = (t[:, None, None, :] for t in edges(start[:, 0], size[:, 0], x.shape[3]))
    total = F.pad(x.double().cumsum(2).cumsum(3), (1, 0, 1, 0))  # sums of all above and to the left
    image = batch.clamp(0, x.shape[0] - 1)[:, None, None, None]
    channel = torch.arange(channels * groups * groups, device=x.device).reshape(1, channels, groups, groups)

    def upto(y: Tensor, x_place: Tensor) -> Tensor:
        return total[image, channel, y, x_place]

    sums = upto(bottom, right) - upto(top, right) - upto(bottom, left) + upto(top, left)
    count = ((bottom - top) * (right - left)).clamp(min=1)
    return (sums / count * valid.reshape(-1, 1, 1, 1)).to(x.dtype)


@kernel("npu_ps_roi_pooling")
def ps_roi_pooling(x: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int) -> Tensor:
    """Position-sensitive pooling: [regions, output_dim, group_size, group_size]; a region of no image gives zeros."""
    return _ps_roi_pool(wide(x), wide(rois), spatial_scale, group_size, output_dim).to(x.dtype)


@kernel("npu_ps_roi_pooling_backward")
def ps_roi_pooling_backward(
    grad: Tensor, rois: Tensor, spatial_scale: float, group_size: int, output_dim: int, input_size: list[int]
) -> Tensor:
    """Gradient of the features, whose height and width input_size gives."""
    features = wide(grad).new_zeros(rois.shape[0], group_size * group_size * output_dim, *input_size)

    def forward(x: Tensor) -> Tensor:
        return _ps_roi_pool(x, wide(rois), spatial_scale, group_size, output_dim)

    return gradients(forward, [features], wide(grad))[0].to(grad.dtype)


def _wandering_taps(
    x: Tensor, offset: Tensor, kernel_size: list[int], stride: list[int], padding: list[int], dilation: list[int],
    groups: int, modulated: bool,
) -> Tensor:  # fmt: skip
    """[batch, channels, rows * kh, columns * kw]: every tap's value, laid out so that a strided convolution reads it.

    The offsets' channels are x, y and the modulation, each [deformable groups, kh, kw].
    """
    batch, channels = x.shape[:2]
    rows, columns = offset.shape[2:]
    kh, kw = kernel_size
    parts = offset.reshape(batch, -1, groups, kh, kw, rows, columns)

    def grid(length: int, size: int, step: int, spread: int, before: int, shape: list[int]) -> Tensor:
        place = torch.arange(length, device=x.device, dtype=x.dtype) * step - before
        tap = torch.arange(size, device=x.device, dtype=x.dtype) * spread
        return (tap.unsqueeze(1) + place).reshape(shape)

    y = grid(rows, kh, stride[2], dilation[2], padding[0], [1, 1, kh, 1, rows, 1]) + parts[:, 1]
    x_place = grid(columns, kw, stride[3], dilation[3], padding[2], [1, 1, 1, kw, 1, columns]) + parts[:, 0]
    of_group = x.reshape(batch * groups, channels // groups, *x.shape[2:])
    which = torch.arange(batch * groups, device=x.device).reshape(batch, groups, 1, 1, 1, 1).expand_as(y)
    taps = _bilinear(of_group, which, y, x_place)
    taps = taps * parts[:, 2] if modulated else taps
    return taps.permute(1, 2, 0, 5, 3, 6, 4).reshape(batch, channels, rows * kh, columns * kw)


@kernel("npu_deformable_conv2d")
def deformable_conv2d(
    x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor | None, kernel_size: list[int], stride: list[int],
    padding: list[int], dilation: list[int], groups: int = 1, deformable_groups: int = 1, modulated: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(convolution over taps that offsets have moved, the taps' values for the backward op)."""
    settings = (kernel_size, stride, padding, dilation, deformable_groups, modulated)
    taps = _wandering_taps(wide(x), wide(offset), *settings)
    shift = None if bias is None else wide(bias)
    y = F.conv2d(taps, wide(weight), shift, stride=list(kernel_size), groups=groups)
    return y.to(x.dtype), taps.to(x.dtype)


@kernel("npu_deformable_conv2dbk")
def deformable_conv2d_backward(
    x: Tensor, grad: Tensor, offset_out: Tensor, weight: Tensor, offset: Tensor, kernel_size: list[int],
    stride: list[int], padding: list[int], dilation: list[int], groups: int = 1, deformable_groups: int = 1,
    modulated: bool = True,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of x, weight, offset and bias."""

    def forward(x: Tensor, weight: Tensor, offset: Tensor, bias: Tensor) -> Tensor:
        taps = _wandering_taps(x, offset, kernel_size, stride, padding, dilation, deformable_groups, modulated)
        return F.conv2d(taps, weight, bias, stride=list(kernel_size), groups=groups)

    bias = wide(weight).new_zeros(weight.shape[0])
    grads = gradients(forward, [wide(x), wide(weight), wide(offset), bias], wide(grad))
    return tuple(g.to(x.dtype) for g in grads)
