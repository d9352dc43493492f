"""Choose which frames of a video a model gets, and their size, as npukit, LLaMA-Factory and ms-swift do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from npukit.llm.config.options import DataOptions
from npukit.llm.families.sizes import ImageSize
from npukit.llm.families.video import VideoLimits, VideoRule
from npukit.llm.families.vision import Vision
from npukit.llm.images.resize import Size, as_llama_factory, as_qwen_vl_utils
from npukit.llm.images.video import VideoHeader

LLAMA_FACTORY = (16 * 16, 256 * 256)  # its video_min_pixels and video_max_pixels
LLAMA_FACTORY_FRAMES = 128  # its video_maxlen


@dataclass(frozen=True)
class Sampled:
    """The indices of frames, the sizes to which they are resized in sequence, and their size in the model."""

    frames: list[int]
    sizes: list[Size]
    size: ImageSize


@dataclass(frozen=True)
class Sampling:
    """How videos are sampled for a model; `settings` are those of its video processor's file."""

    vision: Vision
    processor: Any
    shape: Any
    data: DataOptions
    settings: Mapping[str, Any]

    def __call__(self, header: VideoHeader) -> Sampled:
        """Choose the frames of a video; raises ValueError with a reason if the video cannot be used.

        >>> sampling(VideoHeader(640, 360, total=300, fps=30.0, seconds=10.0)).size.grid
        (10, 26, 46)
        """
        rule = self.vision.video
        assert rule
        limits = self._limits(rule)
        fps = header.fps or limits.fps  # frames in files were already sampled at the desired rate
        frames = self._frames(rule, header, limits)
        sizes = list(self._sizes(rule, header, len(frames), limits))
        width, height = sizes[-1]
        patch, merge = self.processor.patch_size, self.processor.merge_size
        grid = (-(-len(frames) // 2), height // patch, width // patch)
        seconds = header.seconds if self.data.tokens == "llama_factory" else header.total / fps
        pace = 2 / fps if header.fps is None else 2 * seconds / len(frames)
        if self.data.tokens == "ms_swift" and rule.swift_seconds is not None:
            pace = rule.swift_seconds
        interval = rule.interval(self.shape, pace)
        times = rule.seconds([frame / fps for frame in frames])
        return Sampled(frames, sizes, ImageSize(math.prod(grid) // merge**2, grid, interval, times))

    def _limits(self, rule: VideoRule) -> VideoLimits:
        data, settings = self.data, self.settings
        token = (self.processor.patch_size * self.processor.merge_size) ** 2
        size = settings.get("size") or {} if data.tokens != "ms_swift" else {}
        least, most = (
            size.get(edge) or settings.get(name) or tokens * token
            for edge, name, tokens in (
                ("shortest_edge", "min_pixels", rule.min_tokens),
                ("longest_edge", "max_pixels", rule.max_tokens),
            )
        )
        if data.tokens != "llama_factory":
            least, most = data.video_min_pixels or least, data.video_max_pixels or most
        return VideoLimits(
            data.video_fps or settings.get("fps") or 2.0,
            settings.get("min_frames") or 4,
            data.video_max_frames or settings.get("max_frames") or 768,
            least,
            most,
        )

    def _frames(self, rule: VideoRule, header: VideoHeader, limits: VideoLimits) -> list[int]:
        total, most = header.total, limits.max_frames
        if header.fps is None:
            count = total if self.data.tokens != "npukit" else min(total, most)
            return [int(frame) for frame in np.linspace(0, total - 1, count).round()]
        if self.data.tokens == "llama_factory":
            most = self.data.video_max_frames or LLAMA_FACTORY_FRAMES
            count = min(total, most, max(1, math.floor(header.seconds * limits.fps)))
            return [int(frame) for frame in np.linspace(0, total - 1, count)]
        if self.data.tokens == "ms_swift":
            wanted = min(max(total / header.fps * limits.fps, limits.min_frames), min(most, total) // 2 * 2)
            count = int(wanted) // 2 * 2
            if count < 2:
                raise ValueError("has fewer than 2 frames")
            return [int(frame) for frame in np.linspace(0, total - 1, count).round()]
        return rule.frames(total, header.fps, limits)

    def _sizes(self, rule: VideoRule, header: VideoHeader, frames: int, limits: VideoLimits) -> list[Size]:
        size: Size = (header.width, header.height)
        sizes: list[Size] = []
        factor = self.processor.patch_size * self.processor.merge_size
        if self.data.tokens == "llama_factory":
            least, most = LLAMA_FACTORY
            own = self.data.video_min_pixels or least, self.data.video_max_pixels or most
            sizes += as_llama_factory(size, own, is_grid=True)
        if self.data.tokens == "ms_swift" and header.fps is None:
            sizes.append(as_qwen_vl_utils(size, self.data, self.processor))
        width, height = sizes[-1] if sizes else size
        even = frames + frames % 2 if self.data.tokens == "llama_factory" else frames
        if self.data.tokens == "ms_swift":
            high, wide = VideoRule().resized(frames, height, width, factor, limits)
        else:
            high, wide = rule.resized(even, height, width, factor, limits)
        return [*sizes, (wide, high)]
