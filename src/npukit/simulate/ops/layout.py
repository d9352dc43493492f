"""Slices, transposes, paddings and the like: elements that move but do not change."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.registry import kernel


@kernel("npu_slice", out=["npu_slice.out"])
def slice_of(x: Tensor, offsets: list[int], size: list[int]) -> Tensor:
    """`size` elements of each dimension, from `offsets` on."""
    return x[tuple(slice(start, start + length) for start, length in zip(offsets, size, strict=True))].contiguous()


@kernel("npu_indexing", out=["npu_indexing.out"])
def indexing(
    x: Tensor, begin: list[int], end: list[int], strides: list[int], begin_mask: int = 0, end_mask: int = 0,
    ellipsis_mask: int = 0, new_axis_mask: int = 0, shrink_axis_mask: int = 0,
) -> Tensor:  # fmt: skip
    """x[begin:end:stride] in each dimension; a bit of begin_mask or end_mask leaves that bound open."""
    parts = []
    for dim, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        parts.append(slice(None if begin_mask >> dim & 1 else first, None if end_mask >> dim & 1 else last, step))
    return x[tuple(parts)].contiguous()


@kernel("npu_reshape", out=["npu_reshape.out"])
def reshape(x: Tensor, shape: list[int], can_refresh: bool = False) -> Tensor:
    """A copy of x in another shape."""
    return x.reshape(shape).clone()


@kernel("npu_transpose", out=["npu_transpose.out"])
def transpose(x: Tensor, perm: list[int], require_contiguous: bool = True) -> Tensor:
    """x with its dimensions in another order, laid out anew."""
    return x.permute(perm).contiguous()


@kernel("npu_broadcast", out=["npu_broadcast.out"])
def broadcast(x: Tensor, size: list[int]) -> Tensor:
    """x repeated to a larger shape, with memory of its own."""
    return x.expand(size).contiguous()


@kernel("npu_pad")
def pad(x: Tensor, paddings: list[int]) -> Tensor:
    """Zeros before and after each dimension, the first dimension's two numbers first."""
    pairs = [paddings[i : i + 2] for i in range(0, len(paddings), 2)]
    pairs += [[0, 0]] * (x.dim() - len(pairs))
    return F.pad(x, [n for pair in reversed(pairs) for n in pair])


@kernel("npu_stride_copy", out=["npu_stride_copy.out"])
def stride_copy(x: Tensor, shape: list[int], stride: list[int], storage_offset: int) -> Tensor:
    """A contiguous copy of the elements that shape, stride and offset name in x's storage."""
    return x.as_strided(shape, stride, int(storage_offset)).contiguous()


@kernel("npu_view_copy")
def view_copy(x: Tensor, other: Tensor, non_blocking: bool) -> Tensor:
    """other's values in x."""
    return x.copy_(other)


@kernel("npu_sort_v2", out=["npu_sort_v2.out"])
def sort_v2(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    """The values sorted, without their places."""
    return x.sort(dim, descending).values


@kernel("npu_one_hot")
def one_hot(x: Tensor, num_classes: int = -1, depth: int = 1, on_value: float = 1, off_value: float = 0) -> Tensor:
    """on_value where the last dimension's place is x, off_value elsewhere, in fp32; num_classes counts for nothing."""
    places = torch.arange(depth, device=x.device, dtype=x.dtype)
    chosen = x.unsqueeze(-1) == places
    return torch.full(chosen.shape, float(off_value), device=x.device).masked_fill(chosen, float(on_value))


@kernel("npu_stride_add")
def stride_add(x: Tensor, other: Tensor, offset1: int, offset2: int, c1_len: int) -> Tensor:
    """x + other over blocks of 16 channels from two offsets, c1_len blocks; channels that are missing are zeros."""
    channels = int(c1_len) * 16

    def blocks(t: Tensor, offset: int) -> Tensor:
        part = t[:, int(offset) * 16 : int(offset) * 16 + channels]
        return F.pad(part, (*(0 for _ in range(2 * (t.dim() - 2))), 0, channels - part.shape[1]))

    return blocks(x, offset1) + blocks(other, offset2)
