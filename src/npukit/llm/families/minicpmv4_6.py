"""MiniCPM-V 4.6: Qwen3.5 that sees the whole image and, if it is large, also its slices, each with its own size.

Earlier versions of MiniCPM-V use code that comes with the checkpoint, and are not supported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.sizes import Grid, ImageSize, TowerSizes
from npukit.llm.families.vision import Vision

MODES = {"4x": 2, "16x": 4}  # the width of a token in patches


@dataclass(frozen=True)
class SlicedVision(Vision):
    """`grid` counts the rows and columns of slices. The images of a conversation are numbered in the prompt."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        return TowerSizes.of(config["vision_config"], MODES[config.get("downsample_mode", "16x")] ** 2)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        patch, longest, mode = processor.patch_size, processor.scale_resolution, processor.downsample_mode
        rows, columns = 0, 0
        if processor.slice_mode:
            rows, columns = processor.get_sliced_grid((height, width), processor.max_slice_nums, longest) or (0, 0)
        whole = processor.find_best_resize((height, width), longest, patch, mode, allow_upscale=not rows)
        slices = [(1, whole[0] // patch, whole[1] // patch)]
        if rows:
            high, wide = processor.get_refine_size((height, width), [rows, columns], longest, patch, mode, True)
            slices += [(1, high // rows // patch, wide // columns // patch)] * (rows * columns)
        tokens = sum(high * wide for _, high, wide in slices) // MODES[mode] ** 2
        return ImageSize(tokens, (1, rows, columns), slices=tuple(slices))

    def text(self, size: ImageSize, number: int = 0) -> str:
        whole, *parts = (self.token * part.tokens for part in size.parts())
        slices = [f"<slice>{part}</slice>" for part in parts]
        _, rows, columns = size.grid
        lines = ("".join(slices[row * columns : (row + 1) * columns]) for row in range(rows))
        return f"<image_id>{number}</image_id><image>{whole}</image>" + "\n".join(lines)

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        """Return the patches, which the processor places side by side."""
        beside = processed["pixel_values"]
        _, colours, side, wide = beside.shape
        return beside.reshape(colours, side, wide // side, side).transpose(2, 0, 1, 3)

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch
        from transformers import vision_utils

        grid, vision = torch.tensor(grids), config.vision_config
        index, windows = vision_utils.get_vision_window_index(grid, 1, vision.window_kernel_size[0], 1)
        places = vision_utils.get_vision_nearest_position_ids(grid[:, 1:], vision.image_size // vision.patch_size)
        return {
            "target_sizes": grid[:, 1:],
            "position_ids": places,
            "window_index": index,
            "cu_window_seqlens": windows,
        }

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        beside = pixel_values.permute(1, 2, 0, 3).flatten(2).unsqueeze(0)
        return super().features(body, beside, tower)


VISION = SlicedVision(
    marker="<|image_pad|>",
    token="<|image_pad|>",
    markers={"ms_swift": "<|image_pad|>\n"},
    projector=("model.merger",),
)
