"""DeepSeek-V2: latent attention (MLA) and experts."""

from npukit.llm.families.family import Family

FAMILY = Family(attention="latent", plain_logits=False, templates={"deepseek2": "deepseek"})
