"""DeepSeek-V3 and R1, and models that are built like them: latent attention (MLA), experts after the first layers, and
a layer that predicts the token after the next one.
"""

from npukit.llm.families.family import Family
from npukit.llm.families.latent import dimensions
from npukit.llm.families.next_tokens import nested

FAMILY = Family(attention="latent", experts=True, dimensions=dimensions)
NEXT_TOKENS = nested("model.layers.{layers}.", "shared_head.norm", config={"first_k_dense_replace": 0})
