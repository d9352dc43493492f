"""Mixtures of experts as grouped products: the rows of each expert are adjacent, and one operator multiplies all of
them, without asking the host how many rows each expert has.

On CUDA and the CPU, transformers does this itself. torch_npu has no kernel for torch's grouped product, which would
wait for the device once per layer and launch one product per expert. It has its own operators, which are used here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npukit.launch.abilities import abilities, has_grouped_product

GROUPED_ON_NPU = "npukit_grouped"


def use_grouped_experts(model: Any) -> None:
    """Let a model on an NPU compute its experts with torch_npu's grouped products, if they have no bias."""
    experts = [module for module in model.modules() if hasattr(module, "_is_expert_parallel")]
    if not experts or not abilities(model.device).torch_npu:
        return
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(GROUPED_ON_NPU, _grouped_experts)
    has_bias = any(module.has_bias for module in experts)
    model.set_experts_implementation("eager" if has_bias else GROUPED_ON_NPU)


def are_grouped(model: Any, dtype: torch.dtype) -> bool:
    """Whether a model's experts, if it has any, never wait for the host when they compute in this dtype."""
    if not any(hasattr(module, "_is_expert_parallel") for module in model.modules()):
        return True
    implementation = model.config._experts_implementation
    if implementation == "grouped_mm":
        return has_grouped_product(model.device, dtype)
    return bool(implementation == GROUPED_ON_NPU)


def _grouped_experts(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The computation of transformers' `grouped_mm`, for [tokens, hidden] and the experts and weights of each token."""
    import torch_npu

    rows, places = torch_npu.npu_moe_token_permute(hidden_states, top_k_index.to(torch.int32))
    known = torch.arange(self.num_experts, device=top_k_index.device)
    counts = (top_k_index.flatten()[:, None] == known).sum(0)  # bincount would wait for the device
    rows = _product(self, rows, self.gate_up_proj if self.has_gate else self.up_proj, counts)
    rows = self._apply_gate(rows) if self.has_gate else self.act_fn(rows)
    rows = _product(self, rows, self.down_proj, counts)
    if self.has_post_expert_norm:
        rows = self.post_expert_norm(rows)
    result: Tensor = torch_npu.npu_moe_token_unpermute(rows, places, probs=top_k_weights.to(rows.dtype))
    return result


def _product(experts: nn.Module, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    weights = weights if experts.is_transposed else weights.transpose(1, 2)
    result: Tensor = GroupedProduct.apply(rows.to(weights.dtype), weights, counts)  # type: ignore[no-untyped-call]
    return result


class GroupedProduct(torch.autograd.Function):
    """Multiply rows [rows, in] by the weights [experts, in, out] of their expert; `counts` are the rows per expert."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
        """torch_npu's operator, which reads the counts on the device."""
        ctx.save_for_backward(rows, weights, counts)
        return _by_rows(rows, weights, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, Tensor | None, None]:
        """The same product with transposed weights, and one of rows and gradients for each expert."""
        import torch_npu

        rows, weights, counts = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        of_rows = _by_rows(gradient, weights.transpose(1, 2), counts) if ctx.needs_input_grad[0] else None
        of_weights = None
        if ctx.needs_input_grad[1]:
            options = {"group_list": counts, "split_item": 3, "group_type": 2, "group_list_type": 1}
            (of_weights,) = torch_npu.npu_grouped_matmul([rows.T], [gradient], **options)
        return of_rows, of_weights, None


def _by_rows(rows: Tensor, weights: Tensor, counts: Tensor) -> Tensor:
    import torch_npu

    options = {"group_list": counts, "split_item": 2, "group_type": 0, "group_list_type": 1}
    (result,) = torch_npu.npu_grouped_matmul([rows], [weights], **options)
    return result  # type: ignore[no-any-return]
