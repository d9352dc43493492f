"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(
    fused_rotary=True,
    window=optional_window,
    shapes=Decoder(bias=True),
    templates={"qwen2": "qwen", "qwen2.5": "qwen2_5"},
)
