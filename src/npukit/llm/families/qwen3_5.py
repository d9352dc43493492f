"""Qwen3.5: linear attention in most layers, for which rows are not packed; it sees as Qwen3-VL, without DeepStack."""

from npukit.llm.families import qwen3_vl

VISION = qwen3_vl.VISION
