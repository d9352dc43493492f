"""Llama 4's images as transformers' processor makes them, which needs torchvision; this needs torch alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Llama4Processor:
    """Cuts images into tiles. `given` are the settings of preprocessor_config.json.

    >>> Llama4Processor({"size": {"height": 336, "width": 336}}).tiles(800, 600)
    (2, 3)
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.side = int(given.get("size", {}).get("height", 336))
        self.max_patches = int(given.get("max_patches", 16))
        self.resize_to_max_canvas = bool(given.get("resize_to_max_canvas", False))
        self.rescale_factor = float(given.get("rescale_factor", 1 / 255))
        self.image_mean = tuple(given.get("image_mean", (0.5,) * 3))
        self.image_std = tuple(given.get("image_std", (0.5,) * 3))

    def to_dict(self) -> dict[str, Any]:
        return vars(self)

    def tiles(self, width: int, height: int) -> tuple[int, int]:
        """The tiles from top to bottom and from left to right that show an image largest without enlarging it more than
        necessary; of several such numbers those with the least padding.
        """
        most = self.max_patches
        shapes = np.array([(high, wide) for high in range(1, most + 1) for wide in range(1, most // high + 1)])
        sides = (shapes * self.side).astype(np.float32)
        scales = np.minimum(sides[:, 0] / np.float32(height), sides[:, 1] / np.float32(width))
        larger = scales[scales >= 1]
        best = (larger.max() if self.resize_to_max_canvas else larger.min()) if len(larger) else scales.max()
        fitting = shapes[scales == best]
        high, wide = fitting[fitting.prod(1).argmin()].tolist()
        return high, wide

    def __call__(self, images: Sequence[Any], **_: Any) -> dict[str, Any]:
        """The tiles of all images [tiles, 3, side, side], each image's whole behind its tiles, if there are several."""
        shapes = [self.tiles(*image.size) for image in images]
        pixels = [tile for image, shape in zip(images, shapes, strict=True) for tile in self._cut(image, *shape)]
        return {"pixel_values": torch.cat(pixels).float().numpy(), "aspect_ratios": np.array(shapes)}

    def _cut(self, image: Any, high: int, wide: int) -> list[Tensor]:
        pixels = torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)[None]
        canvas = high * self.side, wide * self.side
        resized = _resized(pixels, *self._within(canvas, *pixels.shape[2:]))
        padded = F.pad(resized, (0, canvas[1] - resized.shape[3], 0, canvas[0] - resized.shape[2]))
        tiles = padded.view(3, high, self.side, wide, self.side).permute(1, 3, 0, 2, 4).flatten(0, 1)
        whole = [_resized(pixels, self.side, self.side)] if high * wide > 1 else []
        return [self._normalised(part) for part in (tiles, *whole)]

    def _within(self, canvas: tuple[int, int], height: int, width: int) -> tuple[int, int]:
        """The largest size of an image on its canvas; one that is smaller than a tile grows to it at most."""
        if not self.resize_to_max_canvas:
            canvas = min(max(height, self.side), canvas[0]), min(max(width, self.side), canvas[1])
        by_height, by_width = canvas[0] / height, canvas[1] / width
        if by_width < by_height:
            return max(1, min(int(height * by_width), canvas[0])), canvas[1]
        return canvas[0], max(1, min(int(width * by_height), canvas[1]))

    def _normalised(self, pixels: Tensor) -> Tensor:
        """In bfloat16, as the model was trained with."""
        scaled = pixels.to(torch.bfloat16) * self.rescale_factor
        mean, std = (torch.tensor(of, dtype=scaled.dtype)[:, None, None] for of in (self.image_mean, self.image_std))
        return (scaled - mean) / std


def _resized(pixels: Tensor, height: int, width: int) -> Tensor:
    if pixels.shape[2:] == (height, width):
        return pixels
    return F.interpolate(pixels, (height, width), mode="bilinear", align_corners=False, antialias=True)
