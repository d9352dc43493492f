"""LLaVA-OneVision: LLaVA-NeXT with a SigLIP tower, whose tiles together take a limited number of tokens.

Several images in a conversation are each cut into tiles, as ms-swift and transformers' processor do it for a list.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.llava_next import NextVision


@dataclass(frozen=True)
class OneVision(NextVision):
    """The limit is in the name of the aspect ratio, as in anyres_max_9."""

    def whole(self, config: Any, patches: int) -> int:
        return patches**2

    def shrunk(self, config: Any, high: int, wide: int, patches: int) -> tuple[int, int]:
        tiles = int(config.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(high * wide / (tiles * patches**2))
        return (int(high // ratio), int(wide // ratio)) if ratio > 1.1 else (high, wide)


VISION = OneVision(
    marker="<image>",
    token="<image>",
    markers={"ms_swift": "<image>\n"},
    projector=("model.multi_modal_projector", "model.image_newline"),
)
