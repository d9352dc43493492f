"""Qwen3.5-MoE: Qwen3.5 with experts, of which all tokens take one."""

from dataclasses import replace

from npukit.llm.families import qwen3_5

FAMILY, VISION = replace(qwen3_5.FAMILY, experts=True), qwen3_5.VISION
