"""Model families: one file for each `model_type`, and nothing about a family anywhere else.

To add one, write a file named after its `model_type` that defines FAMILY.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

from npukit.llm.families.family import Family, window

UNKNOWN = Family(attention="unknown", plain_logits=False, window=window)


def of(config: Any) -> Family:
    """The family of a model, by the contents of its config.json or by transformers' configuration object.

    A model type without a file is UNKNOWN: nothing is assumed about it.

    >>> of({"model_type": "qwen2"}).attention
    'plain'
    """
    return known().get(as_mapping(config).get("model_type", ""), UNKNOWN)


def as_mapping(config: Any) -> Mapping[str, Any]:
    """The keys of config.json that describe the language model; a multimodal one has them under text_config."""
    values = config if isinstance(config, Mapping) else config.to_dict()
    return {**values, **(values.get("text_config") or {})}


@functools.cache
def known() -> dict[str, Family]:
    """Every family, by its model type."""
    modules = (importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__))
    return {module.__name__.rpartition(".")[2]: module.FAMILY for module in modules if hasattr(module, "FAMILY")}
