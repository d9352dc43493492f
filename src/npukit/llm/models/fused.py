"""Faster implementations for modules of transformers; on NPUs, torch_npu's fused operators."""

from __future__ import annotations

import functools
import importlib
import math
from typing import Any

import torch
from torch import Tensor, nn

from npukit.launch.abilities import abilities
from npukit.llm import families
from npukit.llm.models.vision import language_model


def use_fused_operators(model: Any) -> None:
    """Replace GELU, RMSNorm, SwiGLU and rotary embeddings, the latter for all models of the family in this process.

    The replacements compute the same: tests/simulated/test_fused.py compares them.
    """
    for module in model.modules():
        kind = type(module).__name__
        if kind.endswith("RMSNorm") and hasattr(module, "variance_epsilon"):
            module.forward = _rms_norm(module)
        elif is_swiglu(module):
            module.forward = _swiglu(module)
        elif kind in _TANH_GELUS:
            module.forward = _npu_gelu
    code = importlib.import_module(type(language_model(model)).__module__)  # for LLaVA, for example, that of a Llama
    if families.of(model.config).fused_rotary and not hasattr(code.apply_rotary_pos_emb, "is_fused"):
        code.apply_rotary_pos_emb = _rotary(code.apply_rotary_pos_emb)  # type: ignore[attr-defined]


def use_compilable_gelu(model: nn.Module) -> None:
    """Replace GPT-2's GELU by one that compiles to a third less time on CUDA."""
    for module in model.modules():
        if type(module).__name__ in _TANH_GELUS:
            module.forward = sigmoid_gelu


# transformers' activations that are the tanh approximation of GELU.
_TANH_GELUS = frozenset(["FastGELUActivation", "GELUTanh", "NewGELUActivation"])


def sigmoid_gelu(hidden: Tensor) -> Tensor:
    """GELU's tanh approximation written with a sigmoid, which is faster: (1 + tanh x) / 2 = sigmoid 2x.

    >>> sigmoid_gelu(torch.tensor([-1.0, 2.0]))
    tensor([-0.1588,  1.9546])
    """
    return hidden * torch.sigmoid(math.sqrt(8 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden))


def _npu_gelu(hidden: Tensor) -> Tensor:
    import torch_npu

    result: Tensor = torch_npu.npu_gelu(hidden, approximate="tanh")
    return result


def _rms_norm(module: Any) -> Any:
    import torch_npu

    def forward(hidden: Tensor) -> Tensor:
        result: Tensor = torch_npu.npu_rms_norm(hidden, module.weight.to(hidden.dtype), module.variance_epsilon)[0]
        return result

    return forward


def is_swiglu(module: nn.Module) -> bool:
    """Whether a module is a feed-forward layer with a SiLU gate."""
    names = {name for name, _ in module.named_children()} if type(module).__name__.endswith("MLP") else set()
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


def _rotary(before: Any) -> Any:
    """All models of a family call this function, including one on the CPU in the same process."""
    import torch_npu

    @functools.wraps(before)
    def rotary(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        if not abilities(query.device).torch_npu:
            turned: tuple[Tensor, Tensor] = before(query, key, cos, sin, unsqueeze_dim=unsqueeze_dim)
            return turned
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return torch_npu.npu_rotary_mul(query, cos, sin), torch_npu.npu_rotary_mul(key, cos, sin)

    rotary.is_fused = True  # type: ignore[attr-defined]
    return rotary
