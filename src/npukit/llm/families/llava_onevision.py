"""LLaVA-OneVision: LLaVA-NeXT with a SigLIP tower and a limit for the number of tokens of all tiles.

If a conversation has several images, each is cut into tiles. ms-swift and transformers' processor do the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.llava_next import NextVision


@dataclass(frozen=True)
class OneVision(NextVision):
    """The name of the aspect ratio, such as anyres_max_9, contains the limit."""

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
