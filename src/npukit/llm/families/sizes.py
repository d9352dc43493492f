"""The sizes of images, videos and towers: tokens, grids of patches, pixels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Grid = tuple[int, int, int]  # the number of patches in time, height and width


@dataclass(frozen=True)
class ImageSize:
    """The number of tokens that an image or video takes in a prompt, and the grid of its patches."""

    tokens: int
    grid: Grid = (1, 1, 1)
    interval: float = 1.0
    """The distance in time between two steps of a video's grid, in positions."""
    seconds: tuple[float, ...] = ()
    """The time of each step of a video, in families whose prompts contain it."""
    slices: tuple[Grid, ...] = ()
    """The grid of each part of an image that is seen in parts, in the order of their tokens."""

    @property
    def merged(self) -> Grid:
        """The grid of tokens. Each token is made of a square of patches.

        >>> ImageSize(391, (1, 34, 46)).merged
        (1, 17, 23)
        """
        merge = math.isqrt(math.prod(self.grid) // self.tokens)
        return self.grid[0], self.grid[1] // merge, self.grid[2] // merge

    def parts(self, steps: int = 1) -> list[ImageSize]:
        """Return what the tower computes separately: the slices of an image, `steps` parts of a video, or all of it."""
        if self.slices:
            share = sum(math.prod(grid) for grid in self.slices) // self.tokens
            return [ImageSize(math.prod(grid) // share, grid) for grid in self.slices]
        return [ImageSize(self.tokens // steps, (self.grid[0] // steps, *self.grid[1:]))] * steps

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Yield the positions [3, tokens] of each block of tokens, counted from 0. A video is one block, unless times
        are written between its steps: then each step is one.
        """
        import numpy as np

        steps, high, wide = self.merged
        count, steps = (steps, 1) if self.seconds else (1, steps)
        block = np.indices((steps, high, wide)).reshape(3, -1)
        block[0] = (block[0] * self.interval).astype(np.int64)
        yield from [block] * count


@dataclass(frozen=True)
class TowerSizes:
    """The sizes that determine a tower's memory and computation."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    patch: int  # values in a patch
    patches_per_token: float

    @classmethod
    def of(cls, vision: Mapping[str, Any], patches_per_token: float) -> TowerSizes:
        """Read the sizes from a tower's configuration, under any of the names that towers use.

        `embed_dim` comes first, because in Qwen2-VL's configuration `hidden_size` is the size of the tower's output.

        >>> TowerSizes.of({"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}, 4).heads
        16
        """
        hidden = int(vision.get("embed_dim") or vision["hidden_size"])
        return cls(
            layers=int(vision.get("depth") or vision["num_hidden_layers"]),
            hidden=hidden,
            intermediate=int(vision.get("intermediate_size") or hidden * vision.get("mlp_ratio", 4)),
            heads=int(vision.get("num_heads") or vision["num_attention_heads"]),
            patch=3 * _side(vision.get("patch_size", 14)) ** 2 * int(vision.get("temporal_patch_size", 1)),
            patches_per_token=patches_per_token,
        )


def _side(size: Any) -> int:
    """Return the side of a square, which configurations give as one number or two."""
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def smart_resize(
    height: int, width: int, factor: int, min_pixels: float, max_pixels: float, frames: int = 1
) -> tuple[int, int]:
    """Return the closest height and width that `factor` divides and that respect the pixel limits.

    This is what Qwen's processors choose. With several frames, the limits apply to all of them together.

    >>> smart_resize(480, 640, 28, 3136, 1003520)
    (476, 644)
    """
    if max(height, width) > 200 * min(height, width):
        raise ValueError("is more than 200 times as long as it is wide")
    high, wide = (round(side / factor) * factor for side in (height, width))
    counted = frames if frames == 1 else round(frames / 2) * 2
    if counted * high * wide > max_pixels:
        ratio = math.sqrt(frames * height * width / max_pixels)
        high, wide = (max(factor, math.floor(side / ratio / factor) * factor) for side in (height, width))
    elif counted * high * wide < min_pixels:
        ratio = math.sqrt(min_pixels / (frames * height * width))
        high, wide = (math.ceil(side * ratio / factor) * factor for side in (height, width))
    return high, wide
