"""Mistral: Llama; the first version has a sliding window."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, window

FAMILY = Family(fused_rotary=True, window=window, shapes=Decoder(bias=False))
