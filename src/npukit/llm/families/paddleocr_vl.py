"""PaddleOCR-VL: Ernie with the vision of Qwen2-VL. The patches' positions are learned and interpolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.family import Family
from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.vision import GridVision, segments


@dataclass(frozen=True)
class OcrVision(GridVision):
    """The projector after the tower merges the patches. Both sides of an image are at least one token long."""

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        least = processor.patch_size * processor.merge_size
        if height < least:
            width, height = round(width * least / height), least
        if width < least:
            width, height = least, round(height * least / width)
        return super().size(processor, config, width, height, call)

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch
        from transformers import vision_utils

        grid, vision = torch.tensor(grids), config.vision_config
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            grid, vision.image_size // vision.patch_size, mode="bilinear", align_corners=False, spatial_merge_size=1
        )
        return {
            "grid_thw": grid,
            "position_ids": vision_utils.get_vision_position_ids(grid, 1),
            **segments(vision_utils.get_vision_cu_seqlens(grid)),
            "interp_indices": indices,
            "interp_weights": weights,
            "merged_at": _merged(grids, vision.spatial_merge_size),
        }

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        inputs = {name: value for name, value in tower.items() if name != "merged_at"}
        seen = body.visual(pixel_values=pixel_values.to(body.visual.dtype).unsqueeze(0), **inputs).last_hidden_state
        merge = body.projector
        squares = merge.pre_norm(seen)[tower["merged_at"]].flatten(1)
        return merge.linear_2(merge.act(merge.linear_1(squares))), ()


def _merged(grids: Sequence[Grid], merge: int) -> Any:
    """Return the indices of the patches, counted over all images, that make up each token."""
    import torch

    done, squares = 0, []
    for time, high, wide in grids:
        count = time * high * wide
        own = torch.arange(done, done + count).view(time, high // merge, merge, wide // merge, merge)
        squares.append(own.transpose(2, 3).reshape(-1, merge**2))
        done += count
    return torch.cat(squares)


FAMILY = Family()
VISION = OcrVision(
    marker="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    token="<|IMAGE_PLACEHOLDER|>",
    projector=("model.projector",),
    frames_per_patch=1,
    uses_qwen_vl_utils=False,
)
