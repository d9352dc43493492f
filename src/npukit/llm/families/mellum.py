"""Mellum 2: experts in every layer, and a layer for multi-token prediction."""

from npukit.llm.families.next_tokens import BESIDE

NEXT_TOKENS = BESIDE
