"""Conversions between dtypes."""

from __future__ import annotations

from torch import Tensor

from npukit.simulate.ops.common import dtype_of
from npukit.simulate.ops.registry import kernel


@kernel("npu_dtype_cast")
def dtype_cast(x: Tensor, dtype: int, input_dtype: int | None = None) -> Tensor:
    """x in another dtype, given by number; always a new tensor."""
    return x.to(dtype_of(dtype), copy=True)


@kernel("_npu_dtype_cast")
def dtype_cast_to(x: Tensor, dtype: int) -> Tensor:
    """x in another dtype; always a new tensor."""
    return x.to(dtype_of(dtype), copy=True)


@kernel("npu_dtype_cast_")
def dtype_cast_(x: Tensor, source: Tensor) -> Tensor:
    """The source's values in x, converted; nothing is copied where the dtypes are equal already."""
    return x if x.dtype == source.dtype else x.copy_(source)
