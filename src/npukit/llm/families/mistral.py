"""Mistral: Llama, in its first version with a sliding window."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, window

FAMILY = Family(rotary="halves", fused_rotary=True, window=window, shapes=Decoder(bias=False))
