"""Qwen2.5-VL: Qwen2-VL with windowed attention in most layers of its tower, and positions that follow seconds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from npukit.llm.families import qwen2_vl
from npukit.llm.families.video import VideoRule


@dataclass(frozen=True)
class PacedVideo(VideoRule):
    """Positions in time increase with the seconds between frames."""

    def interval(self, config: Any, seconds: float) -> float:
        return float(config.vision_config.tokens_per_second * seconds)


BOXES = replace(qwen2_vl.VISION.boxes, in_pixels=True)
FAMILY, VISION = qwen2_vl.FAMILY, replace(qwen2_vl.VISION, video=PacedVideo(), boxes=BOXES)
