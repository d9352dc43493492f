"""Describe a model without loading it: the shapes of its weights, from its files or from its config.json."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

from npukit.facts.models import known_model
from npukit.llm import families
from npukit.llm.config.options import ModelOptions
from npukit.llm.families.family import Dimensions, Shapes
from npukit.llm.families.sizes import TowerSizes
from npukit.llm.families.vision import Vision
from npukit.llm.models.weights import read_headers

UNLIMITED = 8192  # the longest sequence served of models that have no limit of their own


@dataclass(frozen=True)
class Outline:
    """The shapes of a model's weights, and the dimensions that they follow from."""

    shapes: Shapes
    sizes: Dimensions
    vision: Vision | None = None
    tower: TowerSizes | None = None
    image_share: float = 1.0  # tokens of a row that are images, for vision-language models; 1 if the data is unknown
    max_length: int | None = None  # of a sequence, if config.json says so
    is_paged: bool = True  # whether the engine has a paged cache for its attention

    @property
    def parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))

    @property
    def tower_parameters(self) -> int:
        """The parameters of the vision tower and its projector."""
        return sum(prod(shape) for name, shape in self.shapes.items() if self._sees(name))

    def _sees(self, name: str) -> bool:
        return self.part_of(name) in ("vision_tower", "projector")

    def linear(self) -> Shapes:
        """The matrices that can have an adapter: those inside the layers, by the name of their module."""
        return {
            name.removesuffix(".weight"): shape
            for name, shape in self.shapes.items()
            if len(shape) == 2 and name.endswith(".weight") and _layer_of(name) is not None
        }

    def part_of(self, name: str) -> str | None:
        """The part of a vision-language model that a weight belongs to. Older checkpoints lack the first `model`."""
        return (self.vision.part_of(name) or self.vision.part_of(f"model.{name}")) if self.vision else None

    def computed(self) -> float:
        """Weights of the layers' matrices that a token is multiplied with. For experts, only the selected ones."""
        taken = self.sizes.experts_per_token / self.sizes.experts if self.sizes.experts else 1.0
        matrices = sum(prod(shape) for name, shape in self.linear().items() if not self._sees(name))
        experts = sum(prod(shape) for shape in self.shapes.values() if len(shape) == 3)
        return matrices + experts * taken

    def of_layers(self, count: int) -> int:
        """The parameters of the last `count` layers (of the language model, if there is a tower)."""
        numbers = {name: _layer_of(name) for name in self.shapes if not self._sees(name)}
        first = self.sizes.layers - count
        return sum(
            prod(self.shapes[name]) for name, number in numbers.items() if number is not None and number >= first
        )


def _layer_of(name: str) -> int | None:
    """
    >>> _layer_of("model.layers.11.mlp.up_proj.weight")
    11
    """
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def look_at(options: ModelOptions) -> Outline | None:
    """The model in a local folder, or with a well-known name; None for others on a hub, and for a model without weights
    whose family is not known.
    """
    folder = Path(options.path).expanduser()
    try:
        known = None if folder.exists() else known_model(options.path)
        written = families.thinker(known or json.loads((folder / "config.json").read_text(encoding="utf-8")))
        config = families.as_mapping(written)
        family = families.of(config)
        # Files store each expert separately; a loaded model has them in one tensor.
        is_apart = family.experts and family.shapes
        shapes = {} if options.from_config or known or is_apart else read_headers(folder)
        if not shapes and family.shapes:
            shapes = family.shapes(config)
        vision = families.vision_of(written)
        tower = vision.tower_sizes(written) if vision else None
        if not shapes:
            return None
        return Outline(
            shapes,
            family.dimensions(config),
            vision,
            tower,
            max_length=config.get("max_position_embeddings"),
            is_paged=family.is_paged,
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error):
        return None


def is_target(module: str, targets: str | tuple[str, ...]) -> bool:
    """Whether PEFT puts an adapter on a module with this name."""
    if targets == "all-linear":
        return True
    if isinstance(targets, str):
        return re.fullmatch(targets, module) is not None
    return any(target in ("all-linear", module) or module.endswith(f".{target}") for target in targets)
