"""Llama 3.2 Vision: every fifth layer of the language model attends to the images (cross-attention).

An image is a single token in the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families.sizes import Grid, ImageSize, TowerSizes
from npukit.llm.families.vision import Vision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class CrossVision(Vision):
    """`grid` of an image counts its tiles. There are at most four, all of one size; unused ones are empty."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = config["vision_config"]
        layers = vision["num_hidden_layers"] + vision.get("num_global_layers", 8)
        patches = (vision["image_size"] // vision["patch_size"]) ** 2 + 1
        sizes = {**vision, "num_heads": vision["attention_heads"], "depth": layers}
        return TowerSizes.of(sizes, vision.get("max_num_tiles", 4) * patches)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        from transformers.models.mllama.image_processing_pil_mllama import get_optimal_tiled_canvas

        side = processor.size["height"]
        high, wide = get_optimal_tiled_canvas(height, width, processor.max_image_tiles, side)
        return ImageSize(1, (1, int(high) // side, int(wide) // side))

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        return processed["pixel_values"][0]

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch
        from transformers.models.mllama.image_processing_pil_mllama import get_all_supported_aspect_ratios

        most = config.vision_config.max_num_tiles
        shapes = get_all_supported_aspect_ratios(most)
        numbers = [shapes.index((high, wide)) + 1 for _, high, wide in grids]
        tiles = torch.tensor([high * wide for _, high, wide in grids])
        return {
            "aspect_ratio_ids": torch.tensor(numbers)[:, None],
            "aspect_ratio_mask": (torch.arange(most) < tiles[:, None]).long()[:, None],
        }

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """Return the features of all tiles of each image [images, patches, width]."""
        seen = body.vision_model(pixel_values=pixel_values[:, None], **tower).last_hidden_state
        return body.multi_modal_projector(seen).flatten(1, -2), ()

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64]:
        """Compute a prompt with images as a whole, because its cache has the image features from the first layer on."""
        import numpy as np

        return np.where((np.arange(len(is_image)) < prompt) & is_image.any(), 0, -1)

    def cross(
        self, config: Any, rows: Sequence[NDArray[np.int64]], images: Sequence[Sequence[ImageSize]]
    ) -> dict[str, Any]:
        import torch
        from transformers.models.mllama.processing_mllama import get_cross_attention_token_mask

        vision = config.vision_config
        most, before = max(1, *map(len, images)), 0
        sees = torch.zeros(len(rows), max(map(len, rows)), most, vision.max_num_tiles, dtype=torch.bool)
        numbers = torch.full((len(rows), most), -1)
        for row, (ids, own) in enumerate(zip(rows, images, strict=True)):
            numbers[row, : len(own)] = torch.arange(before, before + len(own))
            before += len(own)
            spans = get_cross_attention_token_mask(ids.tolist(), config.image_token_id)
            for image, ((start, stop), size) in enumerate(zip(spans, own, strict=True)):
                tiles = size.grid[1] * size.grid[2]
                sees[row, start : None if stop == -1 else stop, image, :tiles] = True
        patches = (vision.image_size // vision.patch_size) ** 2 + 1
        return {"images": numbers, "sees": sees, "patches": patches}


VISION = CrossVision(marker="<|image|>", token="<|image|>", tower=("model.vision_model",), packs=False, crosses=True)
