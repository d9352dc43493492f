"""Configurations of other tools for using a model."""

from npukit.llm.config.dialects.use.llama_factory import LLAMA_FACTORY
from npukit.llm.config.dialects.use.swift import SWIFT

DIALECTS = (LLAMA_FACTORY, SWIFT)
