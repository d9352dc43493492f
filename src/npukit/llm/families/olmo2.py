"""OLMo 2: norms after attention and MLP instead of before them, and norms of all queries and keys."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")
# Queries and keys are always rotated in fp32, which the fused operator does not do.
FAMILY = Family(shapes=Decoder(output_bias=True, norms=NORMS, head_norms="all"))
