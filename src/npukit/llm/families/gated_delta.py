"""Qwen's layers with a gated delta rule: linear attention in most layers, and full attention in every fourth."""

from __future__ import annotations

from dataclasses import replace

from npukit.llm.families.family import Config, Dimensions, dimensions


def with_states(config: Config) -> Dimensions:
    """The sizes with those of the states.

    >>> with_states(config).state_layers
    18
    """
    sizes, every = dimensions(config), config.get("full_attention_interval") or 4
    kinds = config.get("layer_types")
    full = kinds.count("full_attention") if kinds else sizes.layers // every
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    return replace(
        sizes,
        state_layers=sizes.layers - full,
        state_inputs=(2 * keys + values) * config["linear_conv_kernel_dim"],
        state_memory=values * config["linear_key_head_dim"],
    )
