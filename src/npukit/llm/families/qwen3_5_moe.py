"""Qwen3.5-MoE: Qwen3.5 with experts."""

from npukit.llm.families import qwen3_vl

VISION = qwen3_vl.VISION
