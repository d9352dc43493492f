"""OLMo 2: norms after attention and MLP instead of before them, and on all queries and keys."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
# It turns queries and keys in fp32 whatever their type, so that the fused operator does not fit.
FAMILY = Family(rotary="halves", shapes=Decoder(output_bias=True, norms=NORMS, head_norms="all"))
