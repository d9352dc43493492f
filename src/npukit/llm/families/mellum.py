"""Mellum 2: experts in every layer, and a layer that predicts the token after the next one."""

from npukit.llm.families.next_tokens import BESIDE

NEXT_TOKENS = BESIDE
