"""A.X K1: latent attention (MLA), and experts after the first layer."""

from npukit.llm.families.family import Family
from npukit.llm.families.latent import dimensions

FAMILY = Family(attention="latent", experts=True, dimensions=dimensions)
