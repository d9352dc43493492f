"""Llama 4's tiles, which npukit makes without torchvision, beside those of transformers' own processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from npukit.llm.images.llama4 import Llama4Processor


@pytest.mark.parametrize(
    ("size", "tiles"),
    [((336, 336), (1, 1)), ((40, 30), (1, 1)), ((672, 336), (1, 2)), ((800, 600), (2, 3)), ((300, 4000), (12, 1))],
)
def test_an_image_is_cut_into_as_few_tiles_as_show_it_in_full(size: tuple[int, int], tiles: tuple[int, int]) -> None:
    assert Llama4Processor({}).tiles(*size) == tiles


def test_a_small_image_fills_one_side_of_a_tile_and_a_large_one_is_seen_as_a_whole_too() -> None:
    own = Llama4Processor({"size": {"height": 56, "width": 56}, "max_patches": 4})
    white = Image.new("RGB", (20, 10), "white")
    (tile,) = own(images=[white])["pixel_values"]
    assert (tile[:, :28] == 1).all() and (tile[:, 28:] == -1).all()
    seen = own(images=[white, white.resize((112, 56))])
    assert seen["pixel_values"].shape == (4, 3, 56, 56) and seen["aspect_ratios"].tolist() == [[1, 1], [1, 2]]


@pytest.mark.parametrize("largest", [False, True])
def test_pixels_are_those_of_transformers(largest: bool) -> None:
    pytest.importorskip("torchvision")
    from transformers.models.llama4.image_processing_llama4 import Llama4ImageProcessor

    settings = {"size": {"height": 56, "width": 56}, "max_patches": 6, "resize_to_max_canvas": largest}
    noise = np.random.default_rng(0)
    sizes = [(56, 56), (112, 56), *noise.integers(5, 400, (30, 2)).tolist()]
    images = [Image.fromarray(noise.integers(0, 255, (high, wide, 3), np.uint8)) for wide, high in sizes]
    expected, made = Llama4ImageProcessor(**settings)(images=images, return_tensors="pt"), Llama4Processor(settings)
    own = made(images=images)
    assert own["aspect_ratios"].tolist() == expected["aspect_ratios"].tolist()
    assert torch.equal(torch.from_numpy(own["pixel_values"]), expected["pixel_values"].float())
