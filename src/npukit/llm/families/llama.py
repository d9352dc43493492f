"""Llama, and the many models that use its code: Yi, Vicuna, DeepSeek-LLM, TinyLlama."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

FAMILY = Family(
    fused_rotary=True,
    shapes=Decoder(output_bias=True),
    templates={"yi": "chatml"},
)
