"""GLM-4.5 to 4.7: experts after the first layers, and a layer for multi-token prediction."""

from npukit.llm.families.next_tokens import nested

NEXT_TOKENS = nested("model.layers.{layers}.", "shared_head.norm", config={"first_k_dense_replace": 0})
