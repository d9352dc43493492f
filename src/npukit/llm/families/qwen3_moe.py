"""Qwen3-MoE: Qwen3 with experts."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(
    experts=True,
    window=optional_window,
    shapes=Decoder(output_bias=True, head_norms="head"),
)
