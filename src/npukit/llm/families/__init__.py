"""Model families: one file for each `model_type`, and nothing about a family anywhere else.

To add one, write a file named after its `model_type` that defines FAMILY, and VISION where it sees images; of a model
that is put together from a tower and some language model, VISION alone. NEXT_TOKENS is for one whose checkpoints bring
a layer for multi-token prediction.
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
    """The family of a model, by the contents of its config.json or by transformers' configuration object.

    A model type without a file is UNKNOWN: nothing is assumed about it.

    >>> of({"model_type": "qwen2"}).attention
    'plain'
    """
    whole, text = (values.get("model_type", "") for values in (thinker(config), as_mapping(config)))
    family = known().get(text.removesuffix("_text")) or known().get(whole, UNKNOWN)
    vision = vision_of(config)
    return family if vision is None or vision.packs else replace(family, packs=False)


def vision_of(config: Any) -> Vision | None:
    """How a model sees images or hears; None for a model of text, or one whose images npukit does not know.

    >>> vision_of({"model_type": "qwen2_vl"}).token
    '<|image_pad|>'
    """
    part = _value(config, "thinker_config") or config
    has_tower = _value(part, "vision_config") or _value(part, "audio_config")
    return visions().get(_value(part, "model_type")) if has_tower else None


def _value(config: Any, name: str) -> Any:
    """Of a configuration object without making it a mapping, which takes milliseconds."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def next_tokens_of(config: Any) -> NextTokens | None:
    """Where a model's checkpoint has its layer for multi-token prediction, if the family has one.

    >>> next_tokens_of({"model_type": "glm4_moe"}).projection
    'model.layers.{layers}.eh_proj'
    """
    return _named("NEXT_TOKENS").get(as_mapping(config).get("model_type", ""))


def as_mapping(config: Any) -> Mapping[str, Any]:
    """The keys of config.json that describe the language model; a multimodal one has them under text_config."""
    values = thinker(config)
    return {**values, **(values.get("text_config") or {})}


def thinker(config: Any) -> Mapping[str, Any]:
    """The keys of config.json; of a model that also speaks, those of the part that reads and writes text.

    >>> thinker({"model_type": "qwen2_5_omni", "thinker_config": {"model_type": "qwen2_5_omni_thinker"}})
    {'model_type': 'qwen2_5_omni_thinker'}
    """
    values: Mapping[str, Any] = config if isinstance(config, Mapping) else config.to_dict()
    return values.get("thinker_config") or values


def known() -> dict[str, Family]:
    """Every family, by its model type."""
    return _named("FAMILY")


def visions() -> dict[str, Vision]:
    """How every family that sees does it, by its model type."""
    return _named("VISION")


@functools.cache
def _named(name: str) -> dict[str, Any]:
    """What the files define under a name, by model type."""
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {module.__name__.rpartition(".")[2]: getattr(module, name) for module in modules if hasattr(module, name)}
