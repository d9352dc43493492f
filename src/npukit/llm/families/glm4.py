"""GLM-4-0414: GLM with two more norms in each layer."""

from npukit.llm.families.decoder import Decoder
from npukit.llm.families.family import Family

NORMS = ("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
FAMILY = Family(shapes=Decoder(fused_gate=True, norms=NORMS))
