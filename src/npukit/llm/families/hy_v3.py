"""Hy3: experts after the first layer, and a layer for multi-token prediction."""

from npukit.llm.families.next_tokens import nested

NEXT_TOKENS = nested("model.layers.{layers}.", "final_layernorm")
