"""Phi-3 and Phi-4: Llama with one matrix for queries, keys and values, and one for gate and up."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family, window

# Some of its models rotate only a part of each head, which the fused operator does not support.
FAMILY = Family(
    window=window,
    shapes=Decoder(bias=False, fused_queries=True, fused_gate=True),
    templates={"phi3": "phi"},
)
