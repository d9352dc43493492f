"""torch_npu's fused operators in place of the modules of transformers that they compute in one go."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn


def use_fused_operators(model: Any) -> None:
    """Replace RMSNorm, SwiGLU and rotary embeddings of Llama-like models, in this model alone but for the rotary one.

    Each computes what it replaces: tests/simulated/test_fused.py holds them side by side.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = _rms_norm(module)
        elif kind.endswith("MLP") and _is_swiglu(module):
            module.forward = _swiglu(module)
    code = importlib.import_module(type(model).__module__)
    if model.config.model_type in _HALF_ROTARY:
        code.apply_rotary_pos_emb = _rotary  # type: ignore[attr-defined]


# Whose rotary embedding turns the two halves of a head against each other, all of it.
_HALF_ROTARY = frozenset(["gemma", "llama", "mistral", "qwen2", "qwen3"])


def _rms_norm(module: Any) -> Any:
    import torch_npu

    def forward(hidden: Tensor) -> Tensor:
        result: Tensor = torch_npu.npu_rms_norm(hidden, module.weight.to(hidden.dtype), module.variance_epsilon)[0]
        return result

    return forward


def _is_swiglu(module: nn.Module) -> bool:
    names = {name for name, _ in module.named_children()}
    activation = getattr(module, "act_fn", getattr(module, "activation_fn", None))
    is_silu = type(activation).__name__.startswith("SiLU")  # torch's, or transformers' own
    return is_silu and "down_proj" in names and ({"gate_proj", "up_proj"} <= names or "gate_up_proj" in names)


def _swiglu(module: Any) -> Any:
    import torch_npu

    def forward(hidden: Tensor) -> Tensor:
        if hasattr(module, "gate_up_proj"):
            both = module.gate_up_proj(hidden)
        else:
            both = torch.cat([module.gate_proj(hidden), module.up_proj(hidden)], dim=-1)
        result: Tensor = module.down_proj(torch_npu.npu_swiglu(both, dim=-1))
        return result

    return forward


def _rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
    import torch_npu

    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return torch_npu.npu_rotary_mul(query, cos, sin), torch_npu.npu_rotary_mul(key, cos, sin)
