"""ERNIE 4.5 with experts. Its layer for multi-token prediction is dense and has no norm after it."""

from npukit.llm.families.next_tokens import NextTokens

NEXT_TOKENS = NextTokens(
    layer="model.mtp_block.0.",
    hidden_norm="model.mtp_hidden_norm.0",
    embedding_norm="model.mtp_emb_norm.0",
    projection="model.mtp_linear_proj.0",
    norm=None,
    config={"moe_layer_start_index": 1},
)
