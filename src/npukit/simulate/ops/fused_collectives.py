"""Matrix products with a collective before or after them, which a card does in one kernel (MC2)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .common import wide, wide_or_none
from .registry import kernel


def _group(communicator: str) -> dist.ProcessGroup:
    """The group whose HCCL communicator has this name."""
    npu, rank = torch.device("npu"), dist.get_rank()
    for group in dist.distributed_c10d._world.pg_map:
        if npu in group._device_types:
            backend: Any = group._get_backend(npu)
            if backend.get_hccl_comm_name(rank, init_comm=False) == communicator:
                return group
    raise RuntimeError(f"No process group of this process has an HCCL communicator with the name {communicator!r}.")


def _product(x1: Tensor, x2: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """x1 @ x2 + bias, with a scale for each row and column where the numbers are quantized."""
    scales = kwargs.get("x1_scale"), kwargs.get("x2_scale")
    for name, given in kwargs.items():
        if isinstance(given, Tensor) and name not in ("bias", "x1_scale", "x2_scale", "x3"):
            raise NotImplementedError(f"The simulated product with a collective does not compute with {name}.")
    factors = (x1.float(), x2.float()) if x1.dtype == torch.int8 else (wide(x1), wide(x2))
    product = factors[0] @ factors[1]
    for scale in scales:
        product = product if scale is None else product * scale
    bias = wide_or_none(kwargs.get("bias"))
    return (product if bias is None else product + bias).to(kwargs.get("output_dtype") or x1.dtype)


def _gather(x: Tensor, communicator: str, ranks: int) -> Tensor:
    shape = (x.size(0) * ranks, *x.shape[1:])
    if x.is_meta:
        return x.new_empty(shape)
    gathered = torch.empty(shape, dtype=x.dtype, device="npu")
    dist.all_gather_into_tensor(gathered, x.to("npu"), group=_group(communicator))
    return gathered.cpu()


@kernel("npu_all_gather_base_mm")
def all_gather_base_mm(x1: Tensor, x2: Tensor, hcom: str, world_size: int, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The rows of all ranks' x1, times x2; and those rows, where they are wanted."""
    rows = _gather(x1, hcom, world_size)
    if kwargs.get("x1_scale") is not None:
        kwargs = kwargs | {"x1_scale": _gather(kwargs["x1_scale"], hcom, world_size)}
    return _product(rows, x2, kwargs), rows if kwargs.get("gather_output", True) else rows.new_empty(0)


@kernel("npu_mm_reduce_scatter_base")
def mm_reduce_scatter_base(x1: Tensor, x2: Tensor, hcom: str, world_size: int, **kwargs: Any) -> Tensor:
    """The sum of all ranks' x1 @ x2 + bias; each rank gets its share of the rows."""
    product = _product(x1, x2, kwargs)
    share = (product.size(0) // world_size, *product.shape[1:])
    if x1.is_meta:
        return product.new_empty(share)
    scattered = torch.empty(share, dtype=product.dtype, device="npu")
    dist.reduce_scatter_tensor(scattered, product.to("npu"), group=_group(hcom))
    return scattered.cpu()


@kernel("npu_mm_all_reduce_base")
def mm_all_reduce_base(x1: Tensor, x2: Tensor, hcom: str, **kwargs: Any) -> Tensor:
    """The sum of all ranks' x1 @ x2 + bias, plus x3."""
    product = _product(x1, x2, kwargs)
    if x1.is_meta:
        return product
    total = product.to("npu")
    dist.all_reduce(total, group=_group(hcom))
    rest = kwargs.get("x3")
    return total.cpu() if rest is None else total.cpu() + rest
