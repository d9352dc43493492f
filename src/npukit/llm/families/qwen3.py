"""Qwen3: Llama with norms on each head's queries and keys."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(
    fused_rotary=True,
    window=optional_window,
    shapes=Decoder(output_bias=True, head_norms="head"),
    templates={"qwen3_nothink": "chatml"},
)
