"""Model families. Each has a file of its own, and no other code knows a family by name.

To add a family, write a file named after its `model_type` that defines FAMILY, and also VISION if its models see
images. A model that combines a vision tower with any language model needs VISION only. NEXT_TOKENS is for families
whose checkpoints contain a layer for multi-token prediction.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from npukit.llm.families.family import Family, window
from npukit.llm.families.next_tokens import NextTokens
from npukit.llm.families.vision import Vision

UNKNOWN = Family(attention="unknown", plain_logits=False, window=window)


def of(config: Any) -> Family:
    """Return the family of a model, given the contents of config.json or transformers' configuration object.

    The family of a model type without a file is UNKNOWN, for which nothing is assumed.

    >>> of({"model_type": "qwen2"}).attention
    'plain'
    """
    whole, text = (values.get("model_type", "") for values in (thinker(config), as_mapping(config)))
    family = known().get(text.removesuffix("_text")) or known().get(whole, UNKNOWN)
    vision = vision_of(config)
    return family if vision is None or vision.packs else replace(family, packs=False)


def vision_of(config: Any) -> Vision | None:
    """Return how a model sees images or hears, or None for text models and for models npukit does not know.

    >>> vision_of({"model_type": "qwen2_vl"}).token
    '<|image_pad|>'
    """
    part = _value(config, "thinker_config") or config
    has_tower = _value(part, "vision_config") or _value(part, "audio_config")
    return visions().get(_value(part, "model_type")) if has_tower else None


def _value(config: Any, name: str) -> Any:
    """Return one key of a configuration. Converting a configuration object to a dict would take milliseconds."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def next_tokens_of(config: Any) -> NextTokens | None:
    """Return where a model's checkpoint has its layer for multi-token prediction, or None.

    >>> next_tokens_of({"model_type": "glm4_moe"}).projection
    'model.layers.{layers}.eh_proj'
    """
    return _named("NEXT_TOKENS").get(as_mapping(config).get("model_type", ""))


def as_mapping(config: Any) -> Mapping[str, Any]:
    """Return the keys of the language model. In config.json of a multimodal model they are under text_config."""
    values = thinker(config)
    return {**values, **(values.get("text_config") or {})}


def thinker(config: Any) -> Mapping[str, Any]:
    """Return the keys of config.json. Of a model that also speaks, only those of its "thinker", which writes the text.

    >>> thinker({"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker"}})
    {'model_type': 'qwen2_5_omni_thinker'}
    """
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    return values.get("thinker_config") or values


def known() -> dict[str, Family]:
    """Return all families by model type."""
    return _named("FAMILY")


def visions() -> dict[str, Vision]:
    """Return all VISION definitions by model type."""
    return _named("VISION")


@functools.cache
def _named(name: str) -> dict[str, Any]:
    """Return what the families' files define under a name, by model type."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.__name__.rpartition(".")[2]: getattr(module, name) for module in modules if hasattr(module, name)}
