"""Add layers to a model that change nothing until they are trained (LLaMA-Pro)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.train.blocks import blocks

# The last matrices of attention and of the feed-forward part, by their names in the families.
LAST = ("o_proj", "down_proj", "out_proj", "c_proj", "dense", "dense_4h_to_h", "wo", "w2")


def grow(model: Any, count: int) -> list[nn.Module]:
    """Insert `count` new layers at equal distances into a model, and return them.

    Each is a copy of the preceding layer with its last matrices set to zero, so that it passes its input on unchanged.

    >>> len(grow(model, 4))  # of a model with 28 layers, which has 32 then
    4
    """
    layers = blocks(model)
    if len(layers) % count:
        raise NpukitError(f"tuning.new_layers must divide the model's {len(layers)} layers, not {count}.")
    place = next(module for module in model.modules() if isinstance(module, nn.ModuleList) and list(module) == layers)
    distance, shape = len(layers) // count, model.config.get_text_config()
    kinds = list(getattr(shape, "layer_types", None) or [])
    new = [_without_effect(layer) for layer in layers[distance - 1 :: distance]]
    for number, layer in enumerate(new):
        at = (number + 1) * distance + number
        place.insert(at, layer)
        kinds[at:at] = kinds[at - 1 : at]
    for number, layer in enumerate(place):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = number  # type: ignore[assignment]
    shape.num_hidden_layers = len(place)
    if kinds:
        shape.layer_types = kinds
    return new


def _without_effect(layer: nn.Module) -> nn.Module:
    made = copy.deepcopy(layer)
    last = [value for name, value in made.named_parameters() if set(name.split(".")) & set(LAST)]
    if len(last) < 2:
        raise NpukitError(f"tuning.new_layers: the output matrices of a {type(layer).__name__} are not known.")
    with torch.no_grad():
        for value in last:
            value.zero_()
    return made
