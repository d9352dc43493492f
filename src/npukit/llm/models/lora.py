"""A gated feed-forward layer with LoRA on all of its matrices, in few kernels.

Its intermediate values are the widest of a layer, and LoRA's own products do little arithmetic with them: they take as
long as reading the values. LoRA's additions, the gate and LoRA's product with the result are therefore one pass over
them, and so are all of their gradients.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npukit.llm.models.fused import is_swiglu

RANKS = (16, 32, 64)  # the ranks that the kernels support
DTYPES = (torch.bfloat16, torch.float16)  # of frozen weights


@torch.library.custom_op("npukit::gated", mutates_args=())
def gated(gate: Tensor, up: Tensor, narrow: Tensor, of_gate: Tensor, of_up: Tensor, down: Tensor) -> list[Tensor]:
    """silu(gate + narrow @ of_gate.T) * (up + narrow @ of_up.T), and its product with `down` in fp32.

    >>> [made.shape for made in gated(wide, wide, torch.zeros(9, 16), tall, tall, tall)]
    [torch.Size([9, 640]), torch.Size([9, 16])]
    """
    if gate.is_cuda:
        from npukit.llm.models import lora_kernel

        return lora_kernel.gated(gate, up, narrow, of_gate, of_up, down)
    opened, raised = (wide + narrow.float() @ tall.float().T for wide, tall in ((gate, of_gate), (up, of_up)))
    hidden = (F.silu(opened) * raised).to(gate.dtype)
    return [hidden, hidden.float() @ down.float()]


@gated.register_fake
def _like_gated(gate: Tensor, up: Tensor, narrow: Tensor, of_gate: Tensor, of_up: Tensor, down: Tensor) -> list[Tensor]:
    return [torch.empty_like(gate), gate.new_empty((gate.shape[0], down.shape[1]), dtype=torch.float32)]


@torch.library.custom_op("npukit::gated_backward", mutates_args=())
def gated_backward(
    gradient: Tensor,
    of_down: Tensor,
    gate: Tensor,
    up: Tensor,
    narrow: Tensor,
    of_gate: Tensor,
    of_up: Tensor,
    down: Tensor,
) -> list[Tensor]:
    """The gradients of gate, up, narrow, of_gate, of_up and down, from those of the two results."""
    if gate.is_cuda:
        from npukit.llm.models import lora_kernel

        return lora_kernel.gated_backward(gradient, of_down, gate, up, narrow, of_gate, of_up, down)
    own, own_down = narrow.float(), of_down.float()
    opened, raised = (wide + own @ tall.float().T for wide, tall in ((gate, of_gate), (up, of_up)))
    slope, share = gradient + own_down @ down.float().T, opened.sigmoid()
    active = opened * share
    of_opened, of_raised = slope * raised * share * (1 + opened - active), slope * active
    of_narrow = of_opened @ of_gate.float() + of_raised @ of_up.float()
    of_weights = of_opened.T @ own, of_raised.T @ own, (active * raised).T @ own_down
    return [of_opened.to(gate.dtype), of_raised.to(gate.dtype), of_narrow, *of_weights]


@gated_backward.register_fake
def _like_gated_backward(
    gradient: Tensor,
    of_down: Tensor,
    gate: Tensor,
    up: Tensor,
    narrow: Tensor,
    of_gate: Tensor,
    of_up: Tensor,
    down: Tensor,
) -> list[Tensor]:
    like = (narrow, of_gate, of_up, down)
    return [torch.empty_like(gate), torch.empty_like(up), *(torch.empty_like(x, dtype=torch.float32) for x in like)]


def fuse_adapted_layers(model: nn.Module) -> None:
    """Use these kernels for gated layers whose three matrices have plain LoRA over frozen 16-bit weights."""
    for module in model.modules():
        if not is_swiglu(module) or not hasattr(module, "gate_proj"):
            continue
        parts: list[Any] = [module.gate_proj, module.up_proj, module.down_proj]
        if all(map(_is_plain, parts)) and sum(_rank(part) for part in parts[:2]) <= RANKS[-1] >= _rank(parts[2]):
            module.forward = MethodType(_forward, module)


def _rank(layer: Any) -> int:
    return int(next(iter(layer.lora_A.values())).weight.shape[0])


def _is_plain(layer: Any) -> bool:
    from peft.tuners.lora.layer import Linear

    if type(layer) is not Linear or type(layer.base_layer) is not nn.Linear or len(layer.lora_A) != 1:
        return False
    (name,), base = layer.lora_A, layer.base_layer
    without_bias = layer.lora_A[name].bias is None and layer.lora_B[name].bias is None
    frozen = not any(parameter.requires_grad for parameter in base.parameters())
    without_dropout = isinstance(layer.lora_dropout[name], nn.Identity)
    return without_bias and without_dropout and frozen and base.weight.dtype in DTYPES and not layer.lora_variant


def _forward(self: Any, hidden: Tensor) -> Tensor:
    parts = self.gate_proj, self.up_proj, self.down_proj
    if any(part.disable_adapters or part.merged for part in parts):
        return type(self).forward(self, hidden)  # type: ignore[no-any-return]
    given: list[Any] = []
    for part in parts:
        (name,) = part.lora_A
        matrices = part.lora_A[name].weight, part.lora_B[name].weight
        given += [part.base_layer.weight, part.base_layer.bias, *matrices, part.scaling[name]]
    flat = hidden.to(given[0].dtype).flatten(0, -2)
    made: Tensor = _Gated.apply(flat, *given)  # type: ignore[no-untyped-call]
    return made.view(*hidden.shape[:-1], made.shape[-1])


class _Gated(torch.autograd.Function):
    """LoRA's two matrices for gate and up, joined into one."""

    @staticmethod
    def forward(
        ctx: Any,
        flat: Tensor,
        gate: Tensor,
        gate_bias: Tensor | None,
        gate_a: Tensor,
        gate_b: Tensor,
        gate_scale: float,
        up: Tensor,
        up_bias: Tensor | None,
        up_a: Tensor,
        up_b: Tensor,
        up_scale: float,
        down: Tensor,
        down_bias: Tensor | None,
        down_a: Tensor,
        down_b: Tensor,
        down_scale: float,
    ) -> Tensor:
        dtype, ranks = flat.dtype, (gate_a.shape[0], up_a.shape[0])
        both = _padded(torch.cat([gate_a, up_a]).T.to(dtype))  # [width, rank]
        width = both.shape[1]
        of_gate = F.pad(gate_b * gate_scale, (0, width - ranks[0])).to(dtype)
        of_up = F.pad(up_b * up_scale, (ranks[0], width - sum(ranks))).to(dtype)
        to_down, of_out = _padded(down_a.T.to(dtype)), _padded((down_b * down_scale).to(dtype))
        narrow = flat @ both
        opened, raised = F.linear(flat, gate, gate_bias), F.linear(flat, up, up_bias)
        made, thin = gated(opened, raised, narrow, of_gate, of_up, to_down)
        thin = thin.to(dtype)
        ctx.save_for_backward(flat, gate, up, down, opened, raised, narrow, thin, both, of_gate, of_up, to_down, of_out)
        ctx.ranks, ctx.scales = (*ranks, down_a.shape[0]), (gate_scale, up_scale, down_scale)
        result: Tensor = F.linear(made, down, down_bias) + thin @ of_out.T
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat, gate, up, down, opened, raised, narrow, thin, both, of_gate, of_up, to_down, of_out = ctx.saved_tensors
        (first, second, third), (gate_scale, up_scale, down_scale) = ctx.ranks, ctx.scales
        of_thin = gradient @ of_out
        of_opened, of_raised, of_narrow, gate_b, up_b, down_a = gated_backward(
            gradient @ down, of_thin, opened, raised, narrow, of_gate, of_up, to_down
        )
        of_narrow = of_narrow.to(flat.dtype)
        of_flat = of_opened @ gate + of_raised @ up + of_narrow @ both.T
        down_b = (gradient.T @ thin)[:, :third].float() * down_scale
        gate_a, up_a = (flat.T @ of_narrow).T[: first + second].float().split([first, second])
        gate_b, up_b = gate_b[:, :first] * gate_scale, up_b[:, first : first + second] * up_scale
        none = None, None, None
        return of_flat, *none[:2], gate_a, gate_b, *none, up_a, up_b, *none, down_a[:, :third].T, down_b, None


def _padded(tall: Tensor) -> Tensor:
    """A matrix padded to a number of columns that the kernels support, stored by rows."""
    width = next(rank for rank in RANKS if rank >= tall.shape[1])
    return F.pad(tall, (0, width - tall.shape[1])).contiguous()
