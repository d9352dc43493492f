"""Qwen2.5-VL: Qwen2-VL whose tower looks at windows of an image in most of its layers."""

from npukit.llm.families import qwen2_vl

FAMILY, VISION = qwen2_vl.FAMILY, qwen2_vl.VISION
