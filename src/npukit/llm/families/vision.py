"""How model families see images: the number of tokens, their positions, and the tower that computes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npukit.llm.families.sizes import Grid, ImageSize, TowerSizes, smart_resize
from npukit.llm.families.video import VideoRule
from npukit.llm.medium import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class BoxRule:
    """How text names an object in an image and where it is."""

    name: str = "{name}"
    box: str = "[{points}]"
    in_pixels: bool = False
    """Whether coordinates are pixels of the resized image, instead of thousandths of its sides."""


@dataclass(frozen=True)
class Vision:
    """What all families share: a tower and a projector turn an image into features, which replace token embeddings."""

    marker: str
    """The text that marks an image in a prompt. It contains `token` once."""
    token: str
    """The token that is repeated for every feature of the image."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """The markers of LLaMA-Factory or ms-swift, if theirs are different."""
    tower: tuple[str, ...] = ("model.vision_tower",)
    """The modules that `freeze_vision_tower` freezes."""
    projector: tuple[str, ...] = ("model.multi_modal_projector",)
    """The modules that `freeze_projector` freezes. They may be inside the tower."""
    language_model: tuple[str, ...] = ("model.language_model", "lm_head")
    """The modules that `freeze_language_model` freezes."""
    video: VideoRule | None = None
    """How the model sees videos, if it can."""
    kind: Kind = "image"
    """Whether this part takes images or audio."""
    audio: Vision | None = None
    """How a model that sees images also hears, if it can."""
    packs: bool = True
    """Whether rows with images can be packed, if the language model's attention supports packing."""
    crosses: bool = False
    """Whether layers of the language model attend to images (cross-attention), instead of token embeddings being
    replaced."""
    prefix: bool = False
    """Whether all tokens of a prompt attend to each other, instead of only to those before them."""
    token_types_name: str = "token_type_ids"
    """The name of the token types in the model's own code."""
    boxes: BoxRule = BoxRule()
    """How ms-swift writes the objects in an image for this family."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of media that the model takes besides text."""
        video: tuple[Kind, ...] = ("video",) if self.video else ()
        return (self.kind, *video, *(self.audio.kinds if self.audio else ()))

    def of(self, kind: Kind) -> Vision:
        """Return the part that takes media of this kind."""
        return self.audio if self.audio and kind == "audio" else self

    def part_of(self, name: str) -> str | None:
        """Return the part that a module or parameter belongs to: vision_tower, projector, language_model or None.

        >>> VISION.part_of("model.visual.merger.mlp.0.weight")
        'projector'
        """
        parts = {"vision_tower": self.tower, "projector": self.projector, "language_model": self.language_model}
        known = [
            (len(prefix), part)
            for part, prefixes in parts.items()
            for prefix in prefixes
            if f"{name}.".startswith(f"{prefix}.")
        ]
        return max(known)[1] if known else None

    def is_unused(self, config: Any, name: str) -> bool:
        """Return whether a parameter of the tower comes after the layer whose output is used as features.

        `config` is the model's configuration in transformers.
        """
        if name.startswith("model.vision_tower.head."):  # it would reduce an image to one vector
            return True
        last = getattr(config, "vision_feature_layer", None)
        if not isinstance(last, int):
            return False
        layers = int(config.vision_config.num_hidden_layers)
        used = last if last >= 0 else layers + 1 + last  # hidden states begin with the embeddings
        match = re.match(r"model\.vision_tower\.(?:encoder\.layers\.(\d+)\.|post_layernorm\.)", name)
        return match is not None and (match[1] is None or int(match[1]) >= used)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        """Return what an image of this size becomes. Raise ValueError with a reason if it cannot be used.

        `config` is the model's configuration in transformers, `call` the arguments with which the processor is called.
        """
        raise NotImplementedError

    def box_frame(self, processor: Any, size: ImageSize) -> tuple[int, int]:
        """Return the width and height of an image in the unit of its boxes."""
        return 1000, 1000

    def audio_size(self, processor: Any, samples: int) -> ImageSize:
        """Return what this number of audio samples becomes. Raise ValueError with a reason if it cannot be used."""
        raise NotImplementedError

    def heard(self, processor: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the input of the tower for a recording. Those of several recordings are concatenated."""
        raise NotImplementedError

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        """Return the sizes of the tower, given the contents of config.json."""
        return TowerSizes.of(config["vision_config"], 1.0)

    def load_processor(self, place: str, **given: Any) -> Any:
        """Load the image processor. `given` are arguments of transformers' from_pretrained."""
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(place, **given)

    def call(self, tokens: str) -> dict[str, Any]:
        """Return the arguments of the processor besides images; `tokens` is npukit, llama_factory or ms_swift."""
        return {}

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        """Return an image's pixels from the processor's result. Those of several images are concatenated."""
        return processed["pixel_values"]

    def text(self, size: ImageSize, number: int = 0) -> str:
        """Return the text that replaces `token` for the tokenizer. `number` counts the images before this one."""
        return self.token * size.tokens

    def limit(self, processor: Any, min_pixels: int | None, max_pixels: int | None) -> bool:
        """Set the pixel limits of the processor. Return False if its image sizes are fixed."""
        return False

    def positions(self, is_image: NDArray[np.bool_], sizes: Iterable[ImageSize]) -> NDArray[np.int64] | None:
        """Return the positions [axes, tokens] of a row, or None if they are the same as for plain text."""
        return None

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64] | None:
        """Return the number of each token's group, or None if the model has no groups.

        Tokens of a group attend to each other and are computed together. A token with -1 is in no group and attends
        only to those before it. `prompt` is the number of tokens before the first answer, and `config` the model's
        configuration in transformers.
        """
        return None

    def token_types(self, groups: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return the groups as token_type_ids, if the model's own code takes these."""
        return None

    def cross(
        self, config: Any, rows: Sequence[NDArray[np.int64]], images: Sequence[Sequence[ImageSize]]
    ) -> dict[str, Any] | None:
        """Return the images that each token of each row attends to, if the model has cross-attention to images."""
        return None

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """Return the arguments of the tower besides pixels.

        They are computed from the grids on the host, so that a step need not wait for the device. `config` is the
        model's configuration in transformers.
        """
        return {}

    def language_inputs(self, body: Any, input_ids: Any) -> dict[str, Any]:
        """Return the arguments of the language model besides the embeddings."""
        return {}

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """Return the features of all images [tokens, width], and those for deeper layers of the language model."""
        seen = body.get_image_features(pixel_values=pixel_values, return_dict=True, **tower).pooler_output
        return _flat(seen), ()


def groups_of_images(is_image: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return groups for `Vision.groups` in which each image of the row is a group.

    >>> groups_of_images(np.array([False, True, True, False, True]))
    array([-1,  0,  0, -1,  1])
    """
    import numpy as np

    begins = is_image & ~np.concatenate([[False], is_image[:-1]])
    return np.where(is_image, begins.cumsum() - 1, -1)


def segments(borders: Any) -> dict[str, Any]:
    """Return the arguments of a tower's attention, given the borders between the segments that attend to themselves."""
    ends = tuple(borders[1:].tolist())
    return {"cu_seqlens": borders, "max_seqlen": int(borders.diff().max()), "segment_ends": (ends,)}


def _flat(features: Any) -> Any:
    """Return the images' features as one tensor [tokens, width]. Some towers return one tensor for each image."""
    import torch

    return torch.cat(list(features)) if isinstance(features, (list, tuple)) else features.flatten(0, -2)


@dataclass(frozen=True)
class GridVision(Vision):
    """The vision of Qwen-VL: images keep their aspect ratio; tokens have positions in time, height and width."""

    tower: tuple[str, ...] = ("model.visual",)
    projector: tuple[str, ...] = ("model.visual.merger",)
    limited_frames: int = 1
    """The number of times that the processor counts an image's pixels when it compares them with its limits."""
    frames_per_patch: int = 2
    """The number of frames in a patch, unless config.json has it."""
    uses_qwen_vl_utils: bool = True
    """Whether ms-swift resizes images with qwen_vl_utils before it calls the processor."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = config["vision_config"]
        frames = {"temporal_patch_size": self.frames_per_patch}
        return TowerSizes.of({**frames, **vision}, vision.get("spatial_merge_size", 2) ** 2)

    def call(self, tokens: str) -> dict[str, Any]:
        return {"do_resize": False} if tokens == "ms_swift" and self.uses_qwen_vl_utils else {}

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        patch, merge = processor.patch_size, processor.merge_size
        if call.get("do_resize", True):
            least, most = (processor.size[name] / self.limited_frames for name in ("shortest_edge", "longest_edge"))
            height, width = smart_resize(height, width, patch * merge, least, most)
        grid = (1, height // patch, width // patch)
        return ImageSize(grid[1] * grid[2] // merge**2, grid)

    def box_frame(self, processor: Any, size: ImageSize) -> tuple[int, int]:
        if not self.boxes.in_pixels:
            return super().box_frame(processor, size)
        return size.grid[2] * processor.patch_size, size.grid[1] * processor.patch_size

    def limit(self, processor: Any, min_pixels: int | None, max_pixels: int | None) -> bool:
        given = {"shortest_edge": min_pixels, "longest_edge": max_pixels}
        chosen = {name: pixels * self.limited_frames for name, pixels in given.items() if pixels}
        processor.size = {**{name: processor.size[name] for name in given}, **chosen}
        return True

    def positions(self, is_image: NDArray[np.bool_], sizes: Iterable[ImageSize]) -> NDArray[np.int64]:
        """Return three positions for each token.

        As in the models' own code, text continues after the highest position of an image or video in any direction.
        """
        import numpy as np

        places = np.empty((3, len(is_image)), dtype=np.int64)
        blocks = (block for size in sizes for block in size.blocks())
        done = after = 0
        while is_image[done:].any():
            begin = done + int(is_image[done:].argmax())
            places[:, done:begin] = after + np.arange(begin - done)
            after += begin - done
            block = next(blocks)
            done = begin + block.shape[1]
            places[:, begin:done] = after + block
            after += int(block.max()) + 1
        places[:, done:] = after + np.arange(len(is_image) - done)
        return places

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        import torch
        from transformers import vision_utils

        grid, vision = torch.tensor(grids), config.vision_config
        merge = vision.spatial_merge_size
        made = {
            "grid_thw": grid,
            "position_ids": vision_utils.get_vision_position_ids(grid, merge),
            **segments(vision_utils.get_vision_cu_seqlens(grid)),
        }
        if window := getattr(vision, "window_size", None):
            index, windows = vision_utils.get_vision_window_index(grid, merge, window, vision.patch_size)
            made |= {"window_index": index, "cu_window_seqlens": windows}
            made["max_window_seqlen"] = int(windows.diff().max())
            made["segment_ends"] += (tuple(windows[1:].tolist()),)
        if getattr(vision, "num_position_embeddings", None):
            side = int(vision.num_position_embeddings**0.5)
            indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                grid, side, mode="bilinear", align_corners=True, spatial_merge_size=merge
            )
            made |= {"interp_indices": indices, "interp_weights": weights}
        return made

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        seen = body.visual(pixel_values.to(body.visual.dtype), **tower, return_dict=True)
        return seen.pooler_output, getattr(seen, "deepstack_features", None) or ()


@dataclass(frozen=True)
class TileVision(Vision):
    """Images become one or more tiles of the same size, each with the same number of tokens."""

    def tiles(self, processor: Any, width: int, height: int, call: Mapping[str, Any]) -> int:
        """Return the number of tiles that an image is cut into."""
        return 1

    def tile_tokens(self, config: Any) -> int:
        """Return the number of tokens of a tile."""
        vision = config.vision_config
        patches = (int(vision.image_size) // int(vision.patch_size)) ** 2
        return patches + int(config.vision_feature_select_strategy == "full")

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        return ImageSize(self.tiles(processor, width, height, call) * self.tile_tokens(config))
