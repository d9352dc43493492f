"""Seed-OSS: Llama with biases on queries, keys and values."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(fused_rotary=True, shapes=Decoder())
