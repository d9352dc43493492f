"""Gemma 4: images of any aspect ratio, resized to about the same number of tokens.

In the larger models, the tokens of an image attend to each other in layers with a window. The smaller models have
additional embeddings for each layer. They can also hear, which npukit does not support.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families.sizes import Grid, ImageSize, TowerSizes
from npukit.llm.families.vision import Vision, groups_of_images

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Gemma4Vision(Vision):
    """Each token is the mean of a square of patches."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = {"patch_size": 16, **config["vision_config"]}
        return TowerSizes.of(vision, vision.get("pooling_kernel_size", 3) ** 2)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        from transformers.models.gemma4.image_processing_pil_gemma4 import get_aspect_ratio_preserving_size

        patch, square = processor.patch_size, processor.pooling_kernel_size
        most = processor.max_soft_tokens * square**2
        high, wide = get_aspect_ratio_preserving_size(height, width, patch, most, square)
        return ImageSize(high * wide // (patch * square) ** 2, (1, high // patch, wide // patch))

    def text(self, size: ImageSize, number: int = 0) -> str:
        return f"<|image>{super().text(size)}<image|>"

    def is_unused(self, config: Any, name: str) -> bool:
        return name.startswith(("model.audio_tower.", "model.embed_audio."))

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        """Return the patches of the image without padding."""
        return processed["pixel_values"][0][(processed["image_position_ids"][0] >= 0).all(-1)]

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64] | None:
        sees_ahead = config.text_config.use_bidirectional_attention == "vision"
        return groups_of_images(is_image) if sees_ahead else None

    def token_types(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        return (groups >= 0).astype(np.int64)

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return the indices of each image's patches [images, patches] and their positions, with -1 for padding."""
        import torch

        counts = [high * wide for _, high, wide in grids]
        at = torch.zeros(len(grids), max(counts), dtype=torch.long)
        places = torch.full((*at.shape, 2), -1)
        done = 0
        for image, (count, (_, _, wide)) in enumerate(zip(counts, grids, strict=True)):
            own = torch.arange(count)
            at[image, :count] = done + own
            places[image, :count] = torch.stack([own % wide, own // wide], 1)
            done += count
        return {"at": at, "image_position_ids": places}

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        return super().features(body, pixel_values[tower["at"]], {"image_position_ids": tower["image_position_ids"]})

    def language_inputs(self, body: Any, input_ids: Any) -> dict[str, Any]:
        """Return the additional embeddings of each layer. Image tokens have those of the padding token."""
        text = body.config.text_config
        if not text.hidden_size_per_layer_input:
            return {}
        ids = input_ids.masked_fill(input_ids == body.config.image_token_id, text.pad_token_id)
        return {"per_layer_inputs": body.language_model.get_per_layer_inputs(ids)}


VISION = Gemma4Vision(
    marker="<|image|>",
    token="<|image|>",
    projector=("model.embed_vision",),
    packs=False,
    token_types_name="mm_token_type_ids",
)
