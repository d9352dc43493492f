"""A small model whose checkpoint brings a layer for multi-token prediction, which is right in some of its guesses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from npukit.llm import families

LAYERS = 2  # of the model itself
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS + 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "moe_intermediate_size": 32,
    "num_experts_per_tok": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 12,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
}
SHAPES: dict[str, dict[str, Any]] = {
    "glm4_moe": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1},
    "hy_v3": {"num_experts": 4},
    "deepseek_v3": {**LATENT, "first_k_dense_replace": 1},
    "glm4_moe_lite": LATENT,
    "mellum": {"num_experts": 4, "num_nextn_predict_layers": 1, "mtp_layer_types": ["full_attention"]},
}
LOUD = 300.0


def save(kind: str, folder: Path, loud: float = LOUD, **shape: Any) -> Path:
    """Such a model of this family: its last layer becomes the one that predicts the token after the next one. The
    louder the embeddings are beside what the layers add, the more the next token depends on the last one alone, and the
    more guesses are right.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SHAPE, **SHAPES[kind], **shape})
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_input_embeddings().weight *= loud
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(_moved(kind, tensors, loud), folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    written["num_hidden_layers"] = LAYERS
    for name in ("layer_types", "mlp_layer_types"):
        if name in written:
            written[name] = written[name][:LAYERS]
    (folder / "config.json").write_text(json.dumps(written))
    return folder


def _moved(kind: str, tensors: dict[str, Tensor], loud: float) -> dict[str, Tensor]:
    family = families.next_tokens_of({"model_type": kind})
    assert family is not None
    names = family.in_model_of(LAYERS)
    is_dense = any(name.startswith("moe_layer") for name in names.config)
    last, like = f"model.layers.{LAYERS}.", f"model.layers.{0 if is_dense else LAYERS}."
    moved = {name: value for name, value in tensors.items() if not name.startswith(last)}
    for name, value in tensors.items():
        if name.startswith(like):
            moved[names.layer + name.removeprefix(like)] = value.clone()
    size = SHAPE["hidden_size"]
    assert isinstance(size, int)
    halves = [torch.eye(size), 0.01 * torch.randn(size, size)]  # of the embedding, and of the hidden state
    parts = {names.projection: torch.cat(halves[::-1] if names.hidden_first else halves, 1) * loud}
    parts |= dict.fromkeys((names.hidden_norm, names.embedding_norm, names.norm or names.hidden_norm), torch.ones(size))
    return moved | {f"{name}.weight": value.clone() for name, value in parts.items()}
