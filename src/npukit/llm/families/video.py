"""How families of models see videos: which frames they take, in which size, at which positions in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npukit.llm.families.sizes import ImageSize, smart_resize

LONGEST_VIDEO = 128_000 * 0.9  # tokens, the limit of qwen_vl_utils


@dataclass(frozen=True)
class VideoLimits:
    """The limits for the number of frames of a video and for the pixels of each."""

    fps: float
    min_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True)
class VideoRule:
    """How Qwen2-VL sees videos: a patch covers two frames, and the pixel limits apply to each frame."""

    marker: str = "<|vision_start|><|video_pad|><|vision_end|>"
    """The text that marks a video in a prompt."""
    token: str = "<|video_pad|>"
    """The token that is repeated for every feature of the video."""
    min_tokens: int = 128
    """The minimum and maximum for a frame, unless the checkpoint or the user sets other ones."""
    max_tokens: int = 768
    swift_seconds: float | None = None
    """The constant that ms-swift uses for the seconds of two frames, or None if it measures them."""

    def frames(self, total: int, fps: float, limits: VideoLimits) -> list[int]:
        """Return the numbers of the frames that the model's own processor selects from a file.

        >>> VideoRule().frames(total=100, fps=25, limits=VideoLimits(2, 4, 768, 1, 10**6))
        [0, 12, 25, 37, 50, 62, 75, 87]
        """
        most = min(limits.max_frames, total) // 2 * 2
        count = max(1, int(min(max(total / fps * limits.fps, limits.min_frames), most)) // 2 * 2)
        return [number * total // count for number in range(count)]

    def resized(self, frames: int, height: int, width: int, factor: int, limits: VideoLimits) -> tuple[int, int]:
        """Return the size of each frame. All frames together are limited to the pixels of a long context."""
        most = min(limits.max_pixels, int(LONGEST_VIDEO * factor**2) * 2 // frames)
        return smart_resize(height, width, factor, limits.min_pixels, max(most, int(limits.min_pixels * 1.05)))

    def interval(self, config: Any, seconds: float) -> float:
        """Return the distance in time between two steps of two frames, in positions.

        `seconds` is the time between them, and `config` the model's configuration in transformers.
        """
        return 1.0

    def seconds(self, times: Sequence[float]) -> tuple[float, ...]:
        """Return the time of each step of two frames if prompts contain it. `times` are those of all frames."""
        return ()

    def text(self, size: ImageSize) -> str:
        """Return the text that replaces `marker` for the tokenizer."""
        return self.marker.replace(self.token, self.token * size.tokens)
