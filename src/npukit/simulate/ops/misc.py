"""Reductions, scatters, sign bits and other ops that belong to no larger family."""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.simulate.ops.common import dtype_of, wide
from npukit.simulate.ops.registry import generator as npu_generator
from npukit.simulate.ops.registry import kernel


@kernel("npu_max.dim")
def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The largest values and their places, these as int32."""
    values, places = x.max(dim, keepdim)
    return values, places.to(torch.int32)


@kernel("npu_min.dim")
def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest values and their places, these as int32."""
    values, places = x.min(dim, keepdim)
    return values, places.to(torch.int32)


@kernel("npu_max_backward", "npu_min_backward")
def extremum_backward(grad: Tensor, dim: int, indices: Tensor, sizes: list[int], keepdim: bool) -> Tensor:
    """The gradient where the extremum was, zero elsewhere."""
    if not sizes:
        return grad.clone()
    grad, places = (t if keepdim else t.unsqueeze(dim) for t in (grad, indices))
    return grad.new_zeros(sizes).scatter(dim, places.long(), grad)


@kernel("npu_scatter")
def scatter(x: Tensor, indices: Tensor, updates: Tensor, dim: int) -> Tensor:
    """x with one element along `dim` replaced for each index; indices and updates lack that dimension."""
    return x.scatter(dim, indices.long().unsqueeze(dim), updates.unsqueeze(dim))


@kernel("npu_scatter_nd_update_", functional="npu_scatter_nd_update")
def scatter_nd_update_(x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """x[indices[i]] = updates[i]; an index's last dimension names as many dimensions of x."""
    return x.index_put_(tuple(indices.long().unbind(-1)), updates.to(x.dtype))


@kernel("scatter_update_", functional="scatter_update")
def scatter_update_(x: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
    """The updates in x along `axis` from the index on, one index for each row of the first dimension."""
    axis = axis % x.dim()
    first = indices.reshape(indices.shape[0], -1)[:, 0].long()
    places = first.unsqueeze(1) + torch.arange(updates.shape[axis], device=x.device)
    shape = [1] * x.dim()
    shape[0], shape[axis] = places.shape[0], places.shape[1]
    rows = places.reshape(shape).expand(updates.shape)
    return x.scatter_(axis, rows, updates.to(x.dtype))


def _listed(x: Tensor, index: Tensor, update: Tensor, wanted: Tensor | None, axis: int) -> Tensor:
    """One tensor of `npu_scatter_list`: the update's elements along `axis` from the index on."""
    places = index.reshape(-1)[0].long() + torch.arange(update.shape[axis], device=x.device)
    places = places.reshape([-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())])
    updated = x.scatter(axis, places.expand(update.shape), update.to(x.dtype))
    return updated if wanted is None else torch.where(wanted.bool(), updated, x)


@kernel("npu_scatter_list_", functional="npu_scatter_list")
def scatter_list_(
    x: list[Tensor], indices: Tensor, updates: Tensor, mask: Tensor | None = None, reduce: str = "update",
    axis: int = -2,
) -> tuple[()]:  # fmt: skip
    """Each tensor's row of updates in it, along `axis` from its index on; the mask leaves tensors as they were."""
    for number, tensor in enumerate(x):
        wanted = None if mask is None else mask[number]
        tensor.copy_(_listed(tensor, indices[number], updates[number], wanted, axis))
    return ()


@kernel("_npu_index_add_", functional="_npu_index_add")
def index_add_(x: Tensor, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    """Add alpha * source to the rows of x that the index names."""
    return x.index_add_(0, index, source.to(x.dtype), alpha=alpha)


@kernel("npu_gather_sparse_index")
def gather_sparse_index(x: Tensor, index: Tensor) -> Tensor:
    """x[index]: rows of the first dimension."""
    return x[index.long()]


@kernel("npu_gather_sparse_index_backward")
def gather_sparse_index_backward(grad: Tensor, self_sizes: list[int], index: Tensor) -> Tensor:
    """The rows' gradients, added up."""
    rows = grad.reshape(-1, *self_sizes[1:])
    return grad.new_zeros(self_sizes).index_add(0, index.flatten().long(), rows)


@kernel("npu_masked_fill_range")
def masked_fill_range(x: Tensor, start: Tensor, end: Tensor, value: Tensor, axis: int = -1) -> Tensor:
    """value[i] in the ranges start[i]:end[i] of `axis`: one for each row of the first dimension, or one for all."""
    axis = axis % x.dim()
    places = torch.arange(x.shape[axis], device=x.device)
    for i in range(start.shape[0]):
        inside = (places >= start[i].unsqueeze(-1)) & (places < end[i].unsqueeze(-1))
        if axis == 0 or start.shape[1] == 1:
            chosen = inside.any(0).reshape([-1 if d == axis else 1 for d in range(x.dim())])
        else:
            chosen = inside.reshape([(inside.shape[0] if d == 0 else -1 if d == axis else 1) for d in range(x.dim())])
        x = torch.where(chosen, value[i], x)
    return x


@kernel("npu_sign_bits_pack")
def sign_bits_pack(x: Tensor, size: int) -> Tensor:
    """A bit for each element, set where it is not negative; the first is a byte's lowest, missing ones are unset."""
    bits = torch.nn.functional.pad((x >= 0).to(torch.uint8), (0, -x.numel() % 8)).unflatten(0, (-1, 8))
    return (bits << torch.arange(8, dtype=torch.uint8, device=x.device)).sum(-1, dtype=torch.uint8).reshape(size, -1)


@kernel("npu_sign_bits_unpack")
def sign_bits_unpack(x: Tensor, size: int, dtype: int | torch.dtype) -> Tensor:
    """1 for each set bit and -1 for each other, in `size` rows."""
    bits = (x.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8, device=x.device)).bitwise_and(1).flatten()
    return (bits.to(torch.float32) * 2 - 1).to(dtype_of(dtype)).reshape(size, -1)


@kernel("one_")
def one_(x: Tensor) -> Tensor:
    """Ones, in place."""
    return x.fill_(1)


@kernel("npu_random_choice_with_mask")
def random_choice_with_mask(x: Tensor, count: int = 256, seed: int = 0, seed2: int = 0) -> tuple[Tensor, Tensor]:
    """(places of `count` true elements chosen at random, which of these rows are real); the rest is zeros."""
    places = x.nonzero()
    source = torch.Generator().manual_seed(seed * 2**31 + seed2) if seed or seed2 else npu_generator()
    order = torch.randperm(places.shape[0], generator=source)[:count]
    rows = torch.zeros(count, x.dim(), dtype=torch.int32)
    rows[: order.shape[0]] = places[order].to(torch.int32)
    return rows, torch.arange(count) < order.shape[0]


@kernel("npu_alloc_float_status")
def alloc_float_status(x: Tensor) -> Tensor:
    """Eight zeros: the flags that a chip without Inf and NaN sets on overflow."""
    return torch.zeros(8, device=x.device)


@kernel("npu_get_float_status")
def get_float_status(x: Tensor, mode: int = 0) -> Tensor:
    """Eight zeros: the simulated NPU keeps Inf and NaN, so it never sets an overflow flag."""
    return torch.zeros(8, dtype=torch.int32, device=x.device)


@kernel("npu_clear_float_status")
def clear_float_status(x: Tensor, mode: int = 0) -> Tensor:
    """Eight zeros."""
    return torch.zeros(8, dtype=x.dtype, device=x.device)


@kernel("_amp_foreach_non_finite_check")
def non_finite_check(scaled_grads: list[Tensor]) -> bool:
    """Whether any gradient holds an Inf or a NaN."""
    return any(not grad.is_meta and not bool(wide(grad).isfinite().all()) for grad in scaled_grads)


@kernel("npu_sim_exponential_")
def sim_exponential_(x: Tensor, lambd: float = 1.0, *, generator: torch.Generator | None = None) -> Tensor:
    """Exponentially distributed values, in place."""
    return x.exponential_(lambd, generator=npu_generator(generator))


@kernel("npu_prefetch")
def prefetch(x: Tensor, dependency: Tensor | None, max_size: int, offset: int = 0) -> tuple[()]:
    """Nothing: there is no cache to fill."""
    return ()


@kernel("aten::_pdist_forward")
def pdist_forward(x: Tensor, p: float = 2) -> Tensor:
    """The distances of all pairs of rows; unlike the CPU's kernel, a card's takes rows that are not contiguous."""
    distances: Tensor = torch.ops.aten._pdist_forward(x.contiguous(), p)
    return distances
