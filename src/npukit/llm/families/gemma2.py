"""Gemma 2: attention scores and logits are capped by a tanh, and every other layer has a sliding window."""

from npukit.llm.families.family import Family, window

FAMILY = Family(attention="capped", plain_logits=False, window=window, templates={"gemma2": "gemma"})
