"""Operators that torch_npu builds from others, defined so that autograd sees their parts.

A kernel runs below autograd. These functions replace torch_npu's own code at autograd's level instead, because that
code ends in CANN calls, or a kernel would cut it off from autograd.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from npukit.simulate.ops.common import dtype_of
from npukit.simulate.ops.dropout_mask import pack

COMPOSITES: dict[str, Callable[..., Any]] = {}
DECOMPOSED = ("fill_diagonal_", "max.out", "min.out", "nanmean.out", "slogdet", "_pad_packed_sequence")
"""Ops of torch whose own decomposition is better than torch_npu's code."""


def composite(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the implementation of an operator at autograd's level."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSITES[name] = function
        return function

    return register


@composite("npu::npu_ciou")
def ciou(
    boxes: Tensor, truth: Tensor, trans: bool = False, is_cross: bool = True, mode: int = 0, atan_sub_flag: bool = False
) -> Tensor:
    """The overlap alone."""
    return torch.ops.npu._npu_ciou(boxes, truth, trans, is_cross, mode, atan_sub_flag)[0]


@composite("npu::dropout_with_byte_mask")
def dropout_with_byte_mask(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout without its mask; nothing outside of training."""
    if p == 0 or not train:
        return x
    return torch.ops.npu._dropout_with_byte_mask(x, p)[0]


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """torch_npu's cast, which has one name less before 2.6."""
    npu = torch.ops.npu
    return (npu._npu_dtype_cast if hasattr(npu, "_npu_dtype_cast") else npu.npu_dtype_cast)(x, dtype)


@composite("npu::npu_dtype_cast_backward")
def dtype_cast_backward(
    grad: Tensor, dtype: int | torch.dtype, grad_dtype: int | None = None, input_dtype: int | None = None
) -> Tensor:
    """The gradient in the input's dtype, which has a gradient in turn, whether or not the given one has."""
    return _cast(grad.requires_grad_(), dtype_of(dtype))


@composite("npu::_npu_dtype_cast_backward")
def dtype_cast_to_backward(grad: Tensor, dtype: int | torch.dtype) -> Tensor:
    """The same of the other cast."""
    return _cast(grad.requires_grad_(), dtype_of(dtype))


@composite("npu::npu_gather_backward")
def gather_backward(grad: Tensor, self_size: list[int], dim: int, index: Tensor, sparse_grad: bool) -> Tensor:
    """What a gather read, added up again; dense even where a sparse gradient was asked for."""
    return grad.new_zeros(self_size).scatter_add(dim, index, grad)


@composite("npu::repeat_interleave_backward_int")
def repeat_interleave_backward_int(grad: Tensor, x: Tensor, repeats: int, dim: int | None = None) -> Tensor:
    """The sum of each element's copies; without a dimension x was flattened first."""
    axis = (-1 if dim is None else dim) % grad.dim()
    return grad.unflatten(axis, (-1, repeats)).sum(axis + 1).reshape(x.shape)


@composite("npu::fft_r2c_backward")
def fft_r2c_backward(grad: Tensor, dim: list[int], normalization: int, onesided: bool, last_dim_size: int) -> Tensor:
    """Real gradient of a real input; a one-sided spectrum counts the missing half as zeros."""
    if onesided:
        missing = last_dim_size - grad.shape[dim[-1]]
        shape = [missing if d == dim[-1] % grad.dim() else n for d, n in enumerate(grad.shape)]
        grad = torch.cat((grad, grad.new_zeros(shape)), dim[-1])
    return torch.ops.aten._fft_c2c(grad, dim, normalization, False).real


@composite("npu::fft_c2r_backward")
def fft_c2r_backward(grad: Tensor, dim: list[int], normalization: int) -> Tensor:
    """Gradient of the one-sided spectrum: the middle, which stands for two, counts twice."""
    spectrum = torch.ops.aten._fft_r2c(grad, dim, normalization, True)
    last, length = dim[-1], spectrum.shape[dim[-1]]
    doubled = grad.shape[last] - length
    weight = torch.tensor([2.0 if 1 <= i <= doubled else 1.0 for i in range(length)], device=grad.device)
    return spectrum * weight.reshape([-1 if d == last % grad.dim() else 1 for d in range(grad.dim())])


@composite("aten::one_hot")
def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """1 where the last dimension's place is x, in x's dtype; a class outside of num_classes has none, as on an NPU."""
    classes = int(x.max()) + 1 if num_classes == -1 else num_classes
    return (x.unsqueeze(-1) == torch.arange(classes, device=x.device)).to(x.dtype)


@composite("aten::_pack_padded_sequence")
def pack_padded_sequence(x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """(the sequences' elements step by step, how many there are in each step: on the host, as torch wants them)."""
    steps = x.transpose(0, 1) if batch_first else x
    sizes = [int((lengths > step).sum()) for step in range(int(lengths[0]))]
    return torch.cat([steps[step, :size] for step, size in enumerate(sizes)]), torch.tensor(sizes)


@composite("aten::lstm.data")
def lstm_of_packed_sequence(
    data: Tensor, batch_sizes: Tensor, hx: list[Tensor], params: list[Tensor], *rest: Any
) -> Any:
    """torch's own way, the weights in the data's dtype."""
    return torch.ops.aten.lstm.data.decompose(data, batch_sizes, hx, [p.to(data.dtype) for p in params], *rest)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
    is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """Fused where torch_npu fuses it, but the mask is made by torch's operators: before 2.6 CANN is called for it."""
    plain_mask = attn_mask is None or (attn_mask.dtype == torch.bool and attn_mask.dim() in (2, 4))
    if plain_mask and query.dim() == key.dim() == value.dim() == 4 and query.shape[1] % key.shape[1] == 0:
        hidden = attn_mask.logical_not() if attn_mask is not None else None
        if is_causal:
            hidden = torch.ones(2048, 2048, dtype=torch.bool, device=query.device).triu(1)
        return torch.ops.npu.npu_fusion_attention(
            query, key, value, query.shape[1], "BNSD", atten_mask=hidden, keep_prob=1 - dropout_p,
            scale=query.shape[-1] ** -0.5 if scale is None else scale,
            next_tockens=0 if is_causal else 2**31 - 1, sparse_mode=2 if is_causal else 0,
        )[0]  # fmt: skip
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    return torch.ops.aten._scaled_dot_product_attention_math(*given, scale=scale)[0]


def dropout_gen_mask(size: list[int], p: float, *, device: Any = None, **options: Any) -> Tensor:
    """A mask of bits for a tensor of that size, made where it is asked for."""
    return pack(torch.rand(torch.Size(size).numel(), device=device or "npu") >= p)


def _decomposition(name: str) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, base), overload or "default")
    return lambda *arguments, **kwargs: op.decompose(*arguments, **kwargs)


def install() -> list[torch.library.Library]:
    """Install them in place of torch_npu's code. The caller must keep the returned object."""
    libraries = {space: torch.library.Library(space, "IMPL") for space in ("aten", "npu")}
    chosen = {**COMPOSITES, **{f"aten::{name}": _decomposition(name) for name in DECOMPOSED}}
    if torch.__version__ < "2.6":
        chosen["aten::scaled_dot_product_attention"] = scaled_dot_product_attention
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # replacing them is intended
        for name, function in chosen.items():
            libraries[name.split("::")[0]].impl(name.split("::")[1], function, "AutogradPrivateUse1")
        libraries["npu"].impl("npu_dropout_gen_mask", dropout_gen_mask, "CompositeImplicitAutograd")
    return list(libraries.values())


_installed = install() if "torch_npu" in sys.modules else []
