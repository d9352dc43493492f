"""One step of Adam and its kin, fused; the tensors that change are given as `out`, in the order parameter, m, v."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from npukit.simulate.ops.common import wide
from npukit.simulate.ops.registry import kernel

Number: TypeAlias = float
State: TypeAlias = tuple[Tensor, Tensor, Tensor]


def _moments(m: Tensor, v: Tensor, grad: Tensor, beta1: Number, beta2: Number) -> tuple[Tensor, Tensor]:
    return wide(m) * beta1 + grad * (1 - beta1), wide(v) * beta2 + grad * grad * (1 - beta2)


def _stored(out: list[Tensor], *values: Tensor) -> State:
    var, m, v = (tensor.copy_(value) for tensor, value in zip(out, values, strict=True))
    return var, m, v


@kernel("npu_apply_adam.out")
def apply_adam(
    beta1_power: Number, beta2_power: Number, lr: Number, beta1: Number, beta2: Number, epsilon: Number, grad: Tensor,
    use_locking: bool | None, use_nesterov: bool | None, *, out: list[Tensor],
) -> State:  # fmt: skip
    """Adam as TensorFlow has it: the rate is corrected, and epsilon is added to the uncorrected root."""
    var, g = wide(out[0]), wide(grad)
    m, v = _moments(out[1], out[2], g, beta1, beta2)
    rate = lr * (1 - beta2_power) ** 0.5 / m.new_tensor(1 - beta1_power)  # a power of one gives Inf, not an error
    direction = m * beta1 + g * (1 - beta1) if use_nesterov else m
    return _stored(out, var - rate * direction / (v.sqrt() + epsilon), m, v)


@kernel("npu_apply_adam_w.out")
def apply_adam_w(
    beta1_power: Number, beta2_power: Number, lr: Number, weight_decay: Number, beta1: Number, beta2: Number,
    epsilon: Number, grad: Tensor, max_grad_norm: Tensor | None, amsgrad: bool | None, maximize: bool | None,
    *, out: list[Tensor],
) -> State:  # fmt: skip
    """AdamW; the powers are those before this step, and with amsgrad max_grad_norm holds the largest v so far."""
    g = -wide(grad) if maximize else wide(grad)
    m, v = _moments(out[1], out[2], g, beta1, beta2)
    largest = v
    if amsgrad and max_grad_norm is not None:
        largest = max_grad_norm.copy_(torch.maximum(wide(max_grad_norm), v))
    denominator = (wide(largest) / (1 - beta2_power * beta2)).sqrt() + epsilon
    var = wide(out[0]) * (1 - lr * weight_decay) - lr * m / (1 - beta1_power * beta1) / denominator
    return _stored(out, var, m, v)


@kernel("npu_bert_apply_adam.out")
def bert_apply_adam(
    lr: Number, beta1: Number, beta2: Number, epsilon: Number, grad: Tensor, max_grad_norm: Number,
    global_grad_norm: Number, weight_decay: Number, step_size: Number | None = None, adam_mode: int = 0,
    *, out: list[Tensor],
) -> State:  # fmt: skip
    """Adam without bias correction, as BERT's; mode 1 (mBART's) takes the corrected step as step_size."""
    g = wide(grad)
    if max_grad_norm > 0 and global_grad_norm > max_grad_norm:
        g = g * (max_grad_norm / global_grad_norm)
    m, v = _moments(out[1], out[2], g, beta1, beta2)
    update = m / (v.sqrt() + epsilon)
    rate = lr if adam_mode == 0 or step_size is None else step_size
    return _stored(out, wide(out[0]) - rate * update - lr * weight_decay * wide(out[0]), m, v)
