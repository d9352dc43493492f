"""InternVL 2.5 and 3 in transformers' format: images are cut into tiles of 448 pixels with 256 tokens each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.sizes import ImageSize, TowerSizes
from npukit.llm.families.vision import BoxRule, TileVision


@dataclass(frozen=True)
class InternVision(TileVision):
    """InternVL's processor cuts images into tiles. LLaMA-Factory turns this off."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        return TowerSizes.of(config["vision_config"], config.get("downsample_ratio", 0.5) ** -2)

    def call(self, tokens: str) -> dict[str, Any]:
        return {"crop_to_patches": tokens != "llama_factory"}

    def tiles(self, processor: Any, width: int, height: int, call: Mapping[str, Any]) -> int:
        return int(processor.get_number_of_image_patches(height, width, dict(call)))

    def tile_tokens(self, config: Any) -> int:
        return int(config.image_seq_length)

    def text(self, size: ImageSize, number: int = 0) -> str:
        return f"<img>{super().text(size)}</img>"


VISION = InternVision(
    marker="<IMG_CONTEXT>", token="<IMG_CONTEXT>", boxes=BoxRule("<ref>{name}</ref>", "<box>[{numbers}]</box>")
)
