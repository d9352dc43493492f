"""Gemma (the first): Llama with GELU, norms that scale by 1 + weight, and a tied output layer."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(fused_rotary=True, shapes=Decoder(output_bias=True, tied=True))
