"""Qwen3.5-MoE: Qwen3.5 with experts."""

from npukit.llm.families import qwen2_vl

VISION = qwen2_vl.VISION
