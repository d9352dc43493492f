"""Training configurations of other tools."""

from npukit.llm.config.dialects.training.llama_factory import LLAMA_FACTORY
from npukit.llm.config.dialects.training.llama_factory_v1 import LLAMA_FACTORY_V1
from npukit.llm.config.dialects.training.swift import SWIFT

DIALECTS = (LLAMA_FACTORY, SWIFT, LLAMA_FACTORY_V1)
