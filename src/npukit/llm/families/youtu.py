"""Youtu-LLM: latent attention (MLA)."""

from npukit.llm.families.family import Family
from npukit.llm.families.latent import dimensions

FAMILY = Family(attention="latent", dimensions=dimensions)
