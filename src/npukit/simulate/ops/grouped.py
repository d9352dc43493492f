"""Products of many small matrices at once: grouped matmul and what is fused to it for mixtures of experts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from npukit.simulate.ops.common import dtype_of, quantized, row_quantized, wide
from npukit.simulate.ops.quant_matmul import dequantized, integers, one_width, scale_of
from npukit.simulate.ops.registry import kernel

_ACTIVATIONS = {1: "relu", 2: "gelu", 3: "gelu_erf", 4: "fastgelu", 5: "silu"}


def activated(y: Tensor, name: str | None) -> Tensor:
    """The activation that a fused product ends in; `gelu` is the tanh form here."""
    if name == "gelu":
        return F.gelu(y, approximate="tanh")
    if name == "fastgelu":
        return y * torch.sigmoid(1.702 * y)
    if name == "gelu_erf":
        return F.gelu(y)
    return y if name is None else F.silu(y) if name == "silu" else F.relu(y)


def spans(group_list: Tensor | Sequence[int], list_type: int, total: int) -> Iterator[tuple[int, int, int]]:
    """(group, start, end) from the groups' ends (0), sizes (1), or pairs of group and size (2).

    Without values, on meta tensors, every group is as large as the next: shapes do not depend on it.
    """
    if isinstance(group_list, Tensor) and group_list.is_meta:
        number = group_list.shape[0]
        for group in range(number):
            yield group, total * group // number, total * (group + 1) // number
        return
    start = 0
    for place, entry in enumerate(group_list.tolist() if isinstance(group_list, Tensor) else group_list):
        group, number = entry if list_type == 2 else (place, entry)
        end = min(number if list_type == 0 else start + number, total)
        yield group, start, end
        start = end


def _of_group(tensors: Sequence[Tensor] | None, group: int, groups: int) -> Tensor | None:
    """What belongs to a group: its own tensor of the list, or its slice of the only one."""
    if not tensors:
        return None
    return tensors[0][group] if len(tensors) == 1 and groups > 1 else tensors[group]


def _product(x: Tensor, weight: Tensor, scale: Tensor | None, row_scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """x @ weight in fp32 with the bias, and the scales of quantized factors."""
    if x.dtype not in (torch.int8, torch.int32):
        y = wide(x) @ wide(weight)
        return y if bias is None else y + wide(bias)
    one_width(x, weight)
    y = (integers(x).double() @ integers(weight).double()).float()
    y = y + bias.float() if bias is not None and bias.dtype == torch.int32 else y
    y = y if scale is None else y * scale_of(scale)
    y = y if row_scale is None else y * row_scale.float().reshape(-1, 1)
    return y + bias.float() if bias is not None and bias.dtype != torch.int32 else y


def _rounded(y: Tensor, dtype: torch.dtype) -> Tensor:
    return quantized(y, dtype) if dtype == torch.int8 else y.to(dtype)


@kernel("npu_grouped_matmul", "npu_grouped_matmul.List")
def grouped_matmul(
    x: list[Tensor], weight: list[Tensor], *, bias: list[Tensor] | None = None, scale: list[Tensor] | None = None,
    offset: list[Tensor] | None = None, antiquant_scale: list[Tensor] | None = None,
    antiquant_offset: list[Tensor] | None = None, per_token_scale: list[Tensor] | None = None,
    group_list: Tensor | list[int] | None = None, activation_input: list[Tensor] | None = None,
    activation_quant_scale: list[Tensor] | None = None, activation_quant_offset: list[Tensor] | None = None,
    split_item: int | None = 0, group_type: int | None = None, group_list_type: int | None = 0,
    act_type: int | None = 0, tuning_config: list[int] | None = None,
    output_dtype: int | torch.dtype | None = None, x_dtype: int | None = None, weight_dtype: int | None = None,
    scale_dtype: int | None = None, per_token_scale_dtype: int | None = None,
) -> list[Tensor]:  # fmt: skip
    """One product for each group: of x's rows (type 0), of the dimension that is summed (2), or of the lists (-1).

    split_item 2 and 3 join the results; rows that belong to no group are zeros.
    """
    dtype = dtype_of(output_dtype, x[0].dtype)
    if group_type == 2:
        columns = spans(_given(group_list), group_list_type or 0, x[0].shape[1])
        products = [wide(x[0][:, start:end]) @ wide(weight[0][start:end]) for _, start, end in columns]
        return _joined([p.to(dtype) for p in products], split_item, stack=True)
    single = len(weight) == 1 and weight[0].dim() == 3
    groups = weight[0].shape[0] if single else len(weight)

    def one(rows: Tensor, row_scale: Tensor | None, group: int) -> Tensor:
        matrix = _of_group(weight, group, groups) if not single else weight[0][group]
        assert matrix is not None
        factor = _of_group(antiquant_scale, group, groups)
        if factor is not None:
            matrix = dequantized(matrix, factor, _of_group(antiquant_offset, group, groups), rows.dtype)
        y = _product(rows, matrix, _of_group(scale, group, groups), row_scale, _of_group(bias, group, groups))
        return _rounded(activated(y, _ACTIVATIONS.get(act_type or 0)), dtype)

    if len(x) > 1 or group_list is None or len(group_list) == 0:
        row_scales: Sequence[Tensor | None] = per_token_scale or [None] * len(x)
        return _joined([one(rows, row_scales[i], i) for i, rows in enumerate(x)], split_item)
    row_scale = per_token_scale[0] if per_token_scale else None
    parts, covered = [], 0
    for group, start, end in spans(group_list, group_list_type or 0, x[0].shape[0]):
        parts.append(one(x[0][start:end], None if row_scale is None else row_scale[start:end], group))
        covered = end
    if split_item in (2, 3) and covered < x[0].shape[0]:
        parts.append(parts[0].new_zeros(x[0].shape[0] - covered, parts[0].shape[-1]))
    return _joined(parts, split_item)


def _given(group_list: Tensor | list[int] | None) -> Tensor | list[int]:
    if group_list is None:
        raise ValueError("npu_grouped_matmul needs group_list when group_type is 2.")
    return group_list


def _joined(parts: list[Tensor], split_item: int | None, stack: bool = False) -> list[Tensor]:
    if split_item not in (2, 3):
        return parts
    return [torch.stack(parts) if stack else torch.cat(parts)]


@kernel("npu_grouped_matmul_add_", functional="npu_grouped_matmul_add")
def grouped_matmul_add_(
    y: Tensor, x: Tensor, weight: Tensor, group_list: Tensor, *, transpose_x: bool = True,
    transpose_weight: bool = False, group_type: int = 2, group_list_type: int | None = 0,
) -> Tensor:  # fmt: skip
    """Add x.T @ weight by groups of rows to y: how the gradients of experts' weights are accumulated, in fp32."""
    products = [
        wide(x[start:end]).T @ wide(weight[start:end])
        for _, start, end in spans(group_list, group_list_type or 0, x.shape[0])
    ]
    return y.copy_(y + torch.stack(products).reshape(y.shape))


@kernel("npu_grouped_matmul_swiglu_quant")
def grouped_matmul_swiglu_quant(
    x: Tensor, weight: Tensor, group_list: Tensor, weight_scale: Tensor, x_scale: Tensor,
    *, bias: Tensor | None = None, offset: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """silu(left) * right of the groups' int8 products, quantized by row: (int8, row scales, an unused tensor)."""
    if weight.dim() != 3:
        raise NotImplementedError("The simulated NPU takes [experts, k, n] weights here, not ones in blocks (NZ).")
    (y,) = grouped_matmul(
        [x], [weight], scale=[weight_scale], per_token_scale=[x_scale], group_list=group_list,
        split_item=3, group_type=0, output_dtype=torch.float32,
    )  # fmt: skip
    gate, value = y.chunk(2, -1)
    values, scale = row_quantized(F.silu(gate) * value, None)
    return values, scale, scale.new_empty(())


@kernel("npu_grouped_matmul_finalize_routing")
def grouped_matmul_finalize_routing(
    x: Tensor, w: Tensor, group_list: Tensor, *, scale: Tensor | None = None, bias: Tensor | None = None,
    offset: Tensor | None = None, pertoken_scale: Tensor | None = None, shared_input: Tensor | None = None,
    logit: Tensor | None = None, row_index: Tensor | None = None, dtype: int | None = None,
    shared_input_weight: float | None = 1.0, shared_input_offset: int | None = 0, output_bs: int | None = 0,
    group_list_type: int | None = 1, tuning_config: list[int] | None = None, x_dtype: int | None = None,
    w_dtype: int | None = None, scale_dtype: int | None = None, pertoken_scale_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """The experts' products times their logits, added up where row_index points, plus the shared expert's rows."""
    (y,) = grouped_matmul(
        [x], [w], bias=None if bias is None else [bias], scale=None if scale is None else [scale],
        per_token_scale=None if pertoken_scale is None else [pertoken_scale], group_list=group_list,
        split_item=3, group_type=0, group_list_type=group_list_type, output_dtype=torch.float32,
    )  # fmt: skip
    y = y if logit is None else y * logit.float().reshape(-1, 1)
    rows = output_bs or x.shape[0]
    out = y.new_zeros(rows, y.shape[-1])
    if row_index is None:
        out[: y.shape[0]] = y
    else:  # row_index numbers the copies of tokens, the copies of one token being neighbours
        out.index_add_(0, row_index.long() // (y.shape[0] // rows), y)
    if shared_input is not None:
        first = shared_input_offset or 0
        weight = 1.0 if shared_input_weight is None else shared_input_weight
        out[first : first + shared_input.shape[0]] += weight * shared_input.float()
    return out


def _rows(x: Tensor | None, number: int) -> Sequence[Tensor | None]:
    return [None] * number if x is None else list(x)


@kernel("npu_ffn")
def ffn(
    x: Tensor, weight1: Tensor, weight2: Tensor, activation: str, *, expert_tokens: list[int] | None = None,
    expert_tokens_index: list[int] | None = None, bias1: Tensor | None = None, bias2: Tensor | None = None,
    scale: Tensor | None = None, offset: Tensor | None = None, deq_scale1: Tensor | None = None,
    deq_scale2: Tensor | None = None, antiquant_scale1: Tensor | None = None, antiquant_scale2: Tensor | None = None,
    antiquant_offset1: Tensor | None = None, antiquant_offset2: Tensor | None = None,
    inner_precise: int | None = None, output_dtype: int | None = None,
) -> Tensor:  # fmt: skip
    """activation(x @ weight1 + bias1) @ weight2 + bias2, for each expert's rows; not for quantized factors."""
    if scale is not None or antiquant_scale1 is not None:
        raise NotImplementedError("The simulated NPU computes npu_ffn for float weights only.")
    experts = expert_tokens if expert_tokens_index is None else expert_tokens_index
    rows = x.flatten(0, -2)
    name = activation

    def layer(part: Tensor, w1: Tensor, b1: Tensor | None, w2: Tensor, b2: Tensor | None) -> Tensor:
        gated = name in ("geglu", "swiglu", "reglu")
        y = _product(part, w1, None, None, b1)
        if gated:
            left, right = y.chunk(2, -1)
            y = activated(left, {"geglu": "gelu", "swiglu": "silu", "reglu": "relu"}[name]) * right
        else:
            y = activated(y, name)
        return _product(y, w2, None, None, b2).to(x.dtype)

    if experts is None:
        return layer(rows, weight1, bias1, weight2, bias2).unflatten(0, x.shape[:-1])
    kind = 1 if expert_tokens_index is None else 0
    b1, b2 = _rows(bias1, len(weight1)), _rows(bias2, len(weight1))
    parts = [layer(rows[i:j], weight1[e], b1[e], weight2[e], b2[e]) for e, i, j in spans(experts, kind, rows.shape[0])]
    return torch.cat(parts).unflatten(0, x.shape[:-1])
