"""Llama 4: an image is cut into tiles of one size, followed by the whole image. Most layers have chunked attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from npukit.llm.families.family import Config, Dimensions, Family, dimensions
from npukit.llm.families.sizes import ImageSize, TowerSizes
from npukit.llm.families.vision import Vision


def _dimensions(config: Config) -> Dimensions:
    """Add the shared expert, which every token uses besides its own."""
    sizes = dimensions(config)
    return replace(sizes, intermediate=sizes.intermediate + sizes.expert)


@dataclass(frozen=True)
class Llama4Vision(Vision):
    """`grid` of an image counts its tiles; `slices` are these tiles and the whole image."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = config["vision_config"]
        return TowerSizes.of(vision, vision.get("pixel_shuffle_ratio", 0.5) ** -2)

    def load_processor(self, place: str, **given: Any) -> Any:
        from transformers import BaseImageProcessor

        from npukit.llm.images.llama4 import Llama4Processor

        settings, _ = BaseImageProcessor.get_image_processor_dict(place, **given)
        return Llama4Processor(settings)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        high, wide = processor.tiles(width, height)
        vision = config.vision_config
        side = vision.image_size // vision.patch_size
        tiles = high * wide + int(high * wide > 1)
        tokens = tiles * int(side * vision.pixel_shuffle_ratio) ** 2
        return ImageSize(tokens, (1, high, wide), slices=((1, side, side),) * tiles)

    def text(self, size: ImageSize, number: int = 0) -> str:
        _, high, wide = size.grid
        tile = "<|patch|>" * size.parts()[-1].tokens
        row = "<|tile_x_separator|>".join([tile] * wide) + "<|tile_y_separator|>"
        return f"<|image_start|>{row * high if len(size.slices) > 1 else ''}<|image|>{tile}<|image_end|>"

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, tuple[()]]:
        seen = body.vision_model(pixel_values.to(body.vision_model.dtype)).last_hidden_state
        return body.multi_modal_projector(seen.flatten(0, 1)), ()


FAMILY = Family(attention="unknown", experts=True, dimensions=_dimensions)
VISION = Llama4Vision(
    marker="<|image|>",
    token="<|image|>",
    tower=("vision_model",),
    projector=("multi_modal_projector",),
    language_model=("language_model",),
)
