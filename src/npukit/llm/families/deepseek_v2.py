"""DeepSeek-V2: latent attention (MLA) and experts."""

from npukit.llm.families.family import Family
from npukit.llm.families.latent import dimensions

FAMILY = Family(attention="latent", experts=True, dimensions=dimensions, templates={"deepseek2": "deepseek"})
