"""Qwen2-MoE: Qwen2 with experts and a shared expert."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(experts=True, window=optional_window, shapes=Decoder(bias=True, shared_expert=True))
