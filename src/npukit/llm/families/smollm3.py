"""SmolLM3: Llama with a tied output layer. Every fourth layer has no position embedding."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(fused_rotary=True, window=optional_window, shapes=Decoder(output_bias=True, tied=True))
