"""GLM-4.1V: GLM-4 with the vision of Qwen2-VL.

Its processor counts the pixels of an image twice, as two frames, and enlarges narrow images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.family import Family
from npukit.llm.families.sizes import ImageSize
from npukit.llm.families.vision import GridVision


@dataclass(frozen=True)
class GlmVision(GridVision):
    """Enlarges images until both sides are at least one token long."""

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        least = processor.patch_size * processor.merge_size
        if min(width, height) < least:
            scale = max(least / height, least / width)
            width, height = int(width * scale), int(height * scale)
        return super().size(processor, config, width, height, call)


FAMILY = Family()
VISION = GlmVision(
    marker="<|begin_of_image|><|image|><|end_of_image|>",
    token="<|image|>",
    limited_frames=2,
    uses_qwen_vl_utils=False,
)
