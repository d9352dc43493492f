"""Qwen3-VL: Qwen3 that also takes features of earlier layers of the tower (DeepStack) and reads the times of frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from npukit.llm.families import qwen2_vl
from npukit.llm.families.sizes import ImageSize, smart_resize
from npukit.llm.families.video import VideoLimits, VideoRule


@dataclass(frozen=True)
class TimedVideo(VideoRule):
    """The time of every two frames is written before their tokens. The pixel limits apply to all frames together."""

    def frames(self, total: int, fps: float, limits: VideoLimits) -> list[int]:
        import numpy as np

        count = min(max(int(total / fps * limits.fps), limits.min_frames), limits.max_frames, total)
        return [int(frame) for frame in np.linspace(0, total - 1, count).round()]

    def resized(self, frames: int, height: int, width: int, factor: int, limits: VideoLimits) -> tuple[int, int]:
        if min(height, width) < factor:
            scale = max(factor / height, factor / width)
            height, width = int(height * scale), int(width * scale)
        frames = max(2, frames)
        most = max(min(self.max_tokens * factor**2, limits.max_pixels // frames), int(limits.min_pixels * 1.05))
        return smart_resize(height, width, factor, limits.min_pixels, most * frames, frames)

    def seconds(self, times: Sequence[float]) -> tuple[float, ...]:
        padded = [*times, times[-1]] if len(times) % 2 else times
        return tuple((first + second) / 2 for first, second in zip(padded[::2], padded[1::2], strict=True))

    def text(self, size: ImageSize) -> str:
        step = self.marker.replace(self.token, self.token * (size.tokens // size.grid[0]))
        return "".join(f"<{second:.1f} seconds>{step}" for second in size.seconds)


FAMILY, VISION = qwen2_vl.FAMILY, replace(qwen2_vl.VISION, video=TimedVideo())
