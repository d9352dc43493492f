"""Qwen3.5: linear attention in most layers, for which rows are not packed; it sees as Qwen3-VL, without DeepStack."""

from npukit.llm.families import qwen3_vl
from npukit.llm.families.family import Family
from npukit.llm.families.gated_delta import with_states

FAMILY, VISION = Family(attention="mixed", rotary="halves", dimensions=with_states), qwen3_vl.VISION
