"""Qwen3.5: most layers have linear attention, so rows cannot be packed. Its vision is Qwen3-VL's without DeepStack."""

from npukit.llm.families import qwen3_vl
from npukit.llm.families.family import Family
from npukit.llm.families.gated_delta import with_states

FAMILY, VISION = Family(attention="mixed", dimensions=with_states), qwen3_vl.VISION
