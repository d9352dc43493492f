"""GLM-4.7-Flash: latent attention (MLA), experts after the first layer, and a layer that predicts the token after the
next one.
"""

from npukit.llm.families.family import Family
from npukit.llm.families.latent import dimensions
from npukit.llm.families.next_tokens import nested

FAMILY = Family(attention="latent", experts=True, dimensions=dimensions)
NEXT_TOKENS = nested("model.layers.{layers}.", "shared_head.norm")
