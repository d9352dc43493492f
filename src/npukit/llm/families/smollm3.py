"""SmolLM3: Llama in which every fourth layer has no positions, with a tied output layer."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(rotary="halves", fused_rotary=True, window=optional_window, shapes=Decoder(output_bias=True, tied=True))
