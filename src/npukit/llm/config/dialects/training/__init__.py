"""Their configurations of a training."""

from npukit.llm.config.dialects.training.llama_factory import LLAMA_FACTORY
from npukit.llm.config.dialects.training.swift import SWIFT

DIALECTS = (LLAMA_FACTORY, SWIFT)
