"""The resizing that LLaMA-Factory and ms-swift do before the model's own processor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from npukit.llm.config.options import DataOptions
from npukit.llm.families.sizes import smart_resize
from npukit.llm.families.vision import GridVision, Vision

if TYPE_CHECKING:
    from PIL.Image import Image

Size = tuple[int, int]  # width and height
LLAMA_FACTORY = (32 * 32, 768 * 768)  # its image_min_pixels and image_max_pixels
MS_SWIFT = (4, 16384)  # tokens, as in qwen_vl_utils
BILINEAR = 2  # PIL.Image.Resampling.BILINEAR
SHORTEST, LONGEST, SQUEEZED = 28, 200, 180  # LLaMA-Factory's limits on sides and proportions for Qwen-VL


def resizes(size: Size, data: DataOptions, vision: Vision, processor: Any) -> Iterator[Size]:
    """The sizes to which an image is resized in sequence, each with its resampling method.

    >>> list(resizes((1280, 960), DataOptions(train=["…"], tokens="llama_factory"), vision, processor))
    [(886, 665)]
    """
    if data.tokens == "llama_factory":
        least, most = data.image_min_pixels or LLAMA_FACTORY[0], data.image_max_pixels or LLAMA_FACTORY[1]
        yield from as_llama_factory(size, (least, most), isinstance(vision, GridVision))
    elif data.tokens == "ms_swift" and isinstance(vision, GridVision) and vision.uses_qwen_vl_utils:
        yield as_qwen_vl_utils(size, data, processor)


def scaled_down(size: Size, most: int | None) -> Size:
    """The size of an image with at most this many pixels, as ms-swift computes it.

    >>> scaled_down((1280, 960), 120_000)
    (400, 300)
    """
    if most is None or size[0] * size[1] <= most:
        return size
    ratio = size[0] / size[1]
    height = math.sqrt(most / ratio)
    return int(height * ratio), int(height)


def as_llama_factory(size: Size, limits: tuple[int, int], is_grid: bool) -> Iterator[Size]:
    """Resize to its pixel limits, and for Qwen-VL to its proportions."""
    least, most = limits
    if size[0] * size[1] > most:
        size = _scaled(size, most)
        yield size
    if size[0] * size[1] < least:
        size = _scaled(size, least)
        yield size
    if not is_grid:
        return
    if min(size) < SHORTEST:
        size = max(size[0], SHORTEST), max(size[1], SHORTEST)
        yield size
    if size[0] / size[1] > LONGEST:
        yield size[1] * SQUEEZED, size[1]
    elif size[1] / size[0] > LONGEST:
        yield size[0], size[0] * SQUEEZED


def _scaled(size: Size, pixels: int) -> Size:
    factor = math.sqrt(pixels / (size[0] * size[1]))
    return int(size[0] * factor), int(size[1] * factor)


def as_qwen_vl_utils(size: Size, data: DataOptions, processor: Any) -> Size:
    """The size that ms-swift gives an image for Qwen-VL."""
    factor = processor.patch_size * processor.merge_size
    least, most = (tokens * factor**2 for tokens in MS_SWIFT)
    height, width = smart_resize(
        size[1], size[0], factor, data.image_min_pixels or least, data.image_max_pixels or most
    )
    return width, height


def resized(image: Image, data: DataOptions, vision: Vision, processor: Any) -> Image:
    """The image in RGB as the tool passes it to the processor."""
    if (size := scaled_down(image.size, data.image_scaled_pixels)) != image.size:
        image = image.convert("RGB").resize(size, BILINEAR)
    if data.tokens == "llama_factory":  # ms-swift resizes first, in the file's mode
        for size in resizes(image.size, data, vision, processor):
            image = image.resize(size)
        return image.convert("RGB")
    image = image.convert("RGB")
    for size in resizes(image.size, data, vision, processor):
        image = image.resize(size)
    return image
