"""Use a language model: the engine that generates tokens, and chat, batch inference, a server and evaluation on it.

    from npukit.inference import LLM, EngineOptions, SamplingParams

See npukit.inference.llm.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npukit.inference.engine.request import SamplingParams as SamplingParams
    from npukit.inference.llm import LLM as LLM
    from npukit.inference.llm import Completion as Completion
    from npukit.llm.config.use import EngineOptions as EngineOptions
    from npukit.llm.config.use import Use as Use

_HOMES = {
    "LLM": "npukit.inference.llm",
    "Completion": "npukit.inference.llm",
    "EngineOptions": "npukit.llm.config.use",
    "SamplingParams": "npukit.inference.engine.request",
    "Use": "npukit.llm.config.use",
}


def __getattr__(name: str) -> Any:
    """Import names when they are first used, because most commands need no torch."""
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
