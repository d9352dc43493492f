"""LLaVA-NeXT (1.6): LLaVA that sees an image as a whole and in tiles, without the padding of the tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.vision import Vision


@dataclass(frozen=True)
class NextVision(Vision):
    """`grid` is the height and width of the image in pixels, from which the model's code computes the tiles."""

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        from transformers.image_processing_utils import select_best_resolution

        side = int(config.vision_config.image_size)
        patches = side // int(config.vision_config.patch_size)
        best = select_best_resolution([height, width], processor.image_grid_pinpoints)
        high, wide = (patches * (side_of_tiles // side) for side_of_tiles in best)
        if width / height > wide / high:
            high -= (high - int(round(height * (wide / width), 7))) // 2 * 2
        else:
            wide -= (wide - int(round(width * (high / height), 7))) // 2 * 2
        high, wide = self.shrunk(config, high, wide, patches)
        return ImageSize(self.whole(config, patches) + high * (wide + 1), (1, height, width))  # one more ends each row

    def whole(self, config: Any, patches: int) -> int:
        """Return the number of tokens of the whole image, which has `patches` patches on each side."""
        return patches**2 + int(config.vision_feature_select_strategy == "full")

    def shrunk(self, config: Any, high: int, wide: int, patches: int) -> tuple[int, int]:
        """Return the number of token rows and columns of all tiles together."""
        return high, wide

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        tiles = processed["pixel_values"]
        return tiles.reshape(-1, *tiles.shape[2:])

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch

        return {"image_sizes": torch.tensor([grid[1:] for grid in grids])}


VISION = NextVision(
    marker="<image>",
    token="<image>",
    markers={"ms_swift": "<image>\n"},
    projector=("model.multi_modal_projector", "model.image_newline"),
)
