"""GLM-4 (9B, 2024): interleaved rotary embedding of half of each head; gate and up are one matrix."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(shapes=Decoder(fused_gate=True), templates={"glm": "glm4"})
