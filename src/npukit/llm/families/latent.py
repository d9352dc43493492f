"""Sizes of models with latent attention (MLA), by the names that DeepSeek-V2 gave them."""

from __future__ import annotations

from dataclasses import replace

from npukit.llm.families import family
from npukit.llm.families.family import Config, Dimensions


def dimensions(config: Config) -> Dimensions:
    """A head is as wide as its query; of a token, the cache keeps a latent vector and a rotated key for all heads."""
    experts = {"num_experts": config.get("n_routed_experts") or 0}
    shared = (config.get("n_shared_experts") or 0) * (config.get("moe_intermediate_size") or 0)
    sizes = family.dimensions({**config, **experts, "shared_expert_intermediate_size": shared})
    rotated = config["qk_rope_head_dim"]
    return replace(sizes, head=config["qk_nope_head_dim"] + rotated, cached=config["kv_lora_rank"] + rotated)
