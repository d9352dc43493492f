"""Qwen3-Next: linear attention in most layers, and experts with one that all tokens take."""

from npukit.llm.families.family import Family
from npukit.llm.families.gated_delta import with_states

FAMILY = Family(attention="mixed", experts=True, dimensions=with_states)
