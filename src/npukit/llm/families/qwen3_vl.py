"""Qwen3-VL: Qwen3 that is also given features of the tower's earlier layers (DeepStack)."""

from npukit.llm.families import qwen2_vl

FAMILY, VISION = qwen2_vl.FAMILY, qwen2_vl.VISION
