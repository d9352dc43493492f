"""Qwen3-VL-MoE: Qwen3-VL with experts."""

from npukit.llm.families import qwen3_vl
from npukit.llm.families.family import Family, optional_window

FAMILY = Family(experts=True, window=optional_window)
VISION = qwen3_vl.VISION
