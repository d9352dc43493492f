"""ERNIE 4.5 (dense): Llama with an interleaved rotary embedding in fp32 and a tied output layer."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(shapes=Decoder(bias=False, tied=True))
