"""Tiny models that see; see tests.seeing."""

from tests.seeing import pictures, seeing_models, seeing_tokenizer

__all__ = ["pictures", "seeing_models", "seeing_tokenizer"]
