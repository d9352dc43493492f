"""Gemma 3: images of one size, with 256 tokens that attend to each other. Most layers have a sliding window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families.sizes import ImageSize, TowerSizes
from npukit.llm.families.vision import TileVision, groups_of_images

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Gemma3Vision(TileVision):
    """Prompts contain only the start token of an image; `text` adds its tokens, its end and empty lines around it."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = config["vision_config"]
        patches = (vision["image_size"] // vision["patch_size"]) ** 2
        return TowerSizes.of(vision, patches / config.get("mm_tokens_per_image", 256))

    def tile_tokens(self, config: Any) -> int:
        return int(config.mm_tokens_per_image)

    def text(self, size: ImageSize, number: int = 0) -> str:
        return f"\n\n<start_of_image>{'<image_soft_token>' * size.tokens}<end_of_image>\n\n"

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64]:
        return groups_of_images(is_image)

    def token_types(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        return (groups >= 0).astype(np.int64)


VISION = Gemma3Vision(marker="<start_of_image>", token="<start_of_image>", packs=False)
