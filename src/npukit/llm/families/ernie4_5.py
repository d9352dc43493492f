"""ERNIE 4.5 (dense): Llama whose heads are turned in pairs, in fp32, with a tied output layer."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(rotary="pairs", shapes=Decoder(bias=False, tied=True))
