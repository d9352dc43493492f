"""Mixtral: Mistral with experts."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, window

FAMILY = Family(experts=True, window=window, shapes=Decoder())
