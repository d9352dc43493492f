"""HunyuanOCR: images of any size. Learned tokens mark the begin and the end of an image and the end of each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npukit.llm.families.family import Family
from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.vision import GridVision, segments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class HunyuanVision(GridVision):
    """Tokens have four positions: in the text, the column, the row, and the number of the image."""

    def is_unused(self, config: Any, name: str) -> bool:
        return name.endswith(".patch_merger.image_sep")

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        grid = super().size(processor, config, width, height, call).grid
        rows, columns = (side // processor.merge_size for side in grid[1:])
        return ImageSize(rows * (columns + 1) + 2, grid)

    def positions(self, is_image: NDArray[np.bool_], sizes: Iterable[ImageSize]) -> NDArray[np.int64]:
        """Return four positions for each token. For text and the ends of an image, all are the place in the text."""
        import numpy as np

        places = np.tile(np.arange(len(is_image)), (4, 1))
        at = np.flatnonzero(is_image)
        done = 0
        for number, size in enumerate(sizes):
            inner = at[done + 1 : done + size.tokens - 1]
            columns = _columns(size.grid, len(inner))
            places[1:, inner] = np.arange(len(inner)) % columns, np.arange(len(inner)) // columns, [number] * len(inner)
            done += size.tokens
        return places

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch
        from transformers import vision_utils

        grid, vision = torch.tensor(grids), config.vision_config
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            grid, vision.max_image_size // vision.patch_size, mode=vision.interpolate_mode, align_corners=False
        )
        return {
            **segments(vision_utils.get_vision_cu_seqlens(grid)),
            "interp_indices": indices + 1,  # position 0 belongs to no patch
            "interp_weights": weights,
            **_order(grids, vision.spatial_merge_size),
        }

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """Compute the tower for all images at once, with matrix products for its convolutions.

        The model's own code computes the images one by one.
        """
        import torch
        import torch.nn.functional as F

        inputs = dict(tower)
        squares, order = inputs.pop("squares"), inputs.pop("order")
        places, weights = inputs.pop("interp_indices"), inputs.pop("interp_weights")
        embeddings, merger = body.vision_tower.embeddings, body.vision_tower.patch_merger
        first = embeddings.patch_embedding
        hidden = F.linear(pixel_values.to(first.weight.dtype), first.weight.flatten(1), first.bias)
        learnt = (embeddings.position_embedding.weight.float()[places] * weights[..., None]).sum(1)
        hidden = (hidden + learnt.to(hidden.dtype))[None]
        for layer in body.vision_tower.layers:
            hidden = layer(hidden, attention_mask=None, **inputs)
        merged = merger.before_rms(hidden[0])[squares].flatten(1)
        weight = merger.proj_conv.weight.permute(0, 2, 3, 1).flatten(1)
        merged = merger.proj_act(F.linear(merged, weight, merger.proj_conv.bias))
        merged = F.linear(merged, merger.proj_out.weight.flatten(1), merger.proj_out.bias)
        seen = merger.mlp(torch.cat([merged, merger.image_newline[None].to(merged.dtype)]))
        ends = torch.stack([merger.image_begin, merger.image_end]).to(seen.dtype)
        return merger.after_rms(torch.cat([seen, ends])[order]), ()


def _columns(grid: Grid, tokens: int) -> int:
    """Return the number of tokens in a row of an image, with the one that ends it, given the number of all tokens.

    >>> _columns((1, 4, 6), 8)
    4
    """
    merge = next(side for side in range(1, grid[1] + 1) if grid[1] // side * (grid[2] // side + 1) == tokens)
    return grid[2] // merge + 1


def _order(grids: Sequence[Grid], merge: int) -> dict[str, Any]:
    """Return the patches of each square, and for each token its index among the squares and the learned tokens."""
    import torch

    squares, parts, patches, done = [], [], 0, 0
    count = sum(time * high * wide for time, high, wide in grids) // merge**2  # the learned tokens follow all squares
    for _, high, wide in grids:
        rows, columns = high // merge, wide // merge
        own = torch.arange(high * wide).view(rows, merge, columns, merge).transpose(1, 2)
        squares.append(patches + own.reshape(-1, merge**2))
        inner = torch.full((rows, columns + 1), count)
        inner[:, :-1] = done + torch.arange(rows * columns).view(rows, columns)
        parts += [torch.tensor([count + 1]), inner.flatten(), torch.tensor([count + 2])]
        patches, done = patches + high * wide, done + rows * columns
    return {"squares": torch.cat(squares), "order": torch.cat(parts)}


FAMILY = Family()
VISION = HunyuanVision(
    marker="<｜hy_place▁holder▁no▁100｜><｜hy_place▁holder▁no▁102｜><｜hy_place▁holder▁no▁101｜>",
    token="<｜hy_place▁holder▁no▁102｜>",
    markers={"ms_swift": "<｜hy_place▁holder▁no▁102｜>"},
    tower=("model.vision_tower",),
    projector=("model.vision_tower.patch_merger",),
    frames_per_patch=1,
    uses_qwen_vl_utils=False,
)
