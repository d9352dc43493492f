"""How families of models see images and videos: how many tokens one becomes, where they lie, what computes them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npukit.llm.medium import Kind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Grid = tuple[int, int, int]  # patches of an image: in time, from top to bottom, from left to right


@dataclass(frozen=True)
class ImageSize:
    """How many tokens an image or a video takes in a prompt, and the grid of patches that they are made of."""

    tokens: int
    grid: Grid = (1, 1, 1)
    interval: float = 1.0
    """Of a video: by how much positions in time grow from one step of the grid to the next."""
    seconds: tuple[float, ...] = ()
    """When each step of a video is, in families that write it into the prompt."""
    slices: tuple[Grid, ...] = ()
    """Of an image that is seen in parts: the grid of each, in the order of their tokens."""

    @property
    def merged(self) -> Grid:
        """The grid of tokens, each made of a square of patches.

        >>> ImageSize(391, (1, 34, 46)).merged
        (1, 17, 23)
        """
        merge = math.isqrt(math.prod(self.grid) // self.tokens)
        return self.grid[0], self.grid[1] // merge, self.grid[2] // merge

    def parts(self, steps: int = 1) -> list[ImageSize]:
        """What the tower sees by itself: slices of an image, `steps` of a video, or all of it."""
        if self.slices:
            share = sum(math.prod(grid) for grid in self.slices) // self.tokens
            return [ImageSize(math.prod(grid) // share, grid) for grid in self.slices]
        return [ImageSize(self.tokens // steps, (self.grid[0] // steps, *self.grid[1:]))] * steps

    def blocks(self) -> Iterator[NDArray[np.int64]]:
        """Positions [3, tokens] of each stretch of its tokens, counted from 0: of a video whose seconds are written
        between its steps, one for each.
        """
        import numpy as np

        steps, high, wide = self.merged
        count, steps = (steps, 1) if self.seconds else (1, steps)
        block = np.indices((steps, high, wide)).reshape(3, -1)
        block[0] = (block[0] * self.interval).astype(np.int64)
        yield from [block] * count


@dataclass(frozen=True)
class TowerSizes:
    """The sizes that a tower's memory and work depend on."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    patch: int  # numbers that a patch is made of
    patches_per_token: float

    @classmethod
    def of(cls, vision: Mapping[str, Any], patches_per_token: float) -> TowerSizes:
        """By the names that towers have for them in config.json; Qwen2-VL's hidden_size is its output's.

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
    """The side of a square that a configuration gives as a number or as two."""
    return int(size[0] if isinstance(size, (list, tuple)) else size)


@dataclass(frozen=True)
class VideoLimits:
    """How many frames of a video are taken, and the pixels between which they are resized."""

    fps: float
    min_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int


@dataclass(frozen=True)
class VideoRule:
    """How Qwen2-VL sees videos: two frames make a patch, and its limits are those of a frame."""

    marker: str = "<|vision_start|><|video_pad|><|vision_end|>"
    """What stands for a video in a prompt."""
    token: str = "<|video_pad|>"
    """The token that is repeated for every feature of the video."""
    min_tokens: int = 128
    """Of a frame, where neither the checkpoint nor the user says otherwise."""
    max_tokens: int = 768
    swift_seconds: float | None = None
    """What ms-swift takes for the seconds of two frames, however far apart they are; None where it counts them."""

    def frames(self, total: int, fps: float, limits: VideoLimits) -> list[int]:
        """Which of a file's frames are taken, as the model's own processor chooses them.

        >>> VideoRule().frames(total=100, fps=25, limits=VideoLimits(2, 4, 768, 1, 10**6))
        [0, 12, 25, 37, 50, 62, 75, 87]
        """
        most = min(limits.max_frames, total) // 2 * 2
        count = max(1, int(min(max(total / fps * limits.fps, limits.min_frames), most)) // 2 * 2)
        return [number * total // count for number in range(count)]

    def resized(self, frames: int, height: int, width: int, factor: int, limits: VideoLimits) -> tuple[int, int]:
        """The size that each frame is given; all of them together have at most the pixels of a long context."""
        most = min(limits.max_pixels, int(LONGEST_VIDEO * factor**2) * 2 // frames)
        return smart_resize(height, width, factor, limits.min_pixels, max(most, int(limits.min_pixels * 1.05)))

    def interval(self, config: Any, seconds: float) -> float:
        """By how much positions in time grow from one step of two frames to the next, after so many seconds.

        `config` is that of the model, as transformers has it.
        """
        return 1.0

    def seconds(self, times: Sequence[float]) -> tuple[float, ...]:
        """When each step of two frames is, if that is written into the prompt, by the times of all frames."""
        return ()

    def text(self, size: ImageSize) -> str:
        """What the tokenizer is given in the place of `marker`."""
        return self.marker.replace(self.token, self.token * size.tokens)


@dataclass(frozen=True)
class BoxRule:
    """How text names an object of an image and says where it is."""

    name: str = "{name}"
    box: str = "[{points}]"
    in_pixels: bool = False
    """Whether places are counted in pixels of the image as the model sees it, and not in thousandths of its sides."""


LONGEST_VIDEO = 128_000 * 0.9  # tokens, as qwen_vl_utils has them


@dataclass(frozen=True)
class Vision:
    """What is common: a tower and a projector turn an image into features, which replace the embeddings of a token."""

    marker: str
    """What stands for an image in a prompt, with `token` in it once."""
    token: str
    """The token that is repeated for every feature of the image."""
    markers: Mapping[str, str] = field(default_factory=dict)
    """The same in prompts of LLaMA-Factory or ms-swift, where they write it otherwise."""
    tower: tuple[str, ...] = ("model.vision_tower",)
    """Modules of the model that `freeze_vision_tower` means."""
    projector: tuple[str, ...] = ("model.multi_modal_projector",)
    """Modules that `freeze_projector` means; they may lie inside the tower."""
    language_model: tuple[str, ...] = ("model.language_model", "lm_head")
    """Modules that `freeze_language_model` means."""
    video: VideoRule | None = None
    """How it sees videos, if it does."""
    kind: Kind = "image"
    """What it takes: images, or audio."""
    audio: Vision | None = None
    """How it hears, if it does so beside seeing."""
    packs: bool = True
    """Whether several rows can be one row of a training batch, if the language model's attention allows it."""
    crosses: bool = False
    """Whether layers of the language model look at images, and nothing is put in the place of embeddings."""
    prefix: bool = False
    """Whether all tokens of a prompt see each other, and not only those before them."""
    token_types_name: str = "token_type_ids"
    """What the model's own code calls the types of tokens."""
    boxes: BoxRule = BoxRule()
    """How ms-swift writes objects of images for it."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What it takes besides text."""
        video: tuple[Kind, ...] = ("video",) if self.video else ()
        return (self.kind, *video, *(self.audio.kinds if self.audio else ()))

    def of(self, kind: Kind) -> Vision:
        """The part that takes media of this kind."""
        return self.audio if self.audio and kind == "audio" else self

    def part_of(self, name: str) -> str | None:
        """Which part of the model a module or parameter belongs to: vision_tower, projector or language_model.

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
        """Whether no feature depends on a parameter of the tower: it comes after the layer that features are taken of.

        `config` is that of the model, as transformers has it.
        """
        if name.startswith("model.vision_tower.head."):  # which would make one vector of an image
            return True
        last = getattr(config, "vision_feature_layer", None)
        if not isinstance(last, int):
            return False
        layers = int(config.vision_config.num_hidden_layers)
        used = last if last >= 0 else layers + 1 + last  # hidden states begin with the embeddings
        match = re.match(r"model\.vision_tower\.(?:encoder\.layers\.(\d+)\.|post_layernorm\.)", name)
        return match is not None and (match[1] is None or int(match[1]) >= used)

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        """What an image of so many pixels becomes; raises ValueError with a reason where it cannot be used.

        `config` is that of the model, as transformers has it, `call` what the processor is called with.
        """
        raise NotImplementedError

    def box_frame(self, processor: Any, size: ImageSize) -> tuple[int, int]:
        """The width and height of an image in the unit of its boxes."""
        return 1000, 1000

    def audio_size(self, processor: Any, samples: int) -> ImageSize:
        """What so many samples of audio become; raises ValueError with a reason where they cannot be used."""
        raise NotImplementedError

    def heard(self, processor: Any, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the tower is given of audio; those of several recordings are put one behind the other."""
        raise NotImplementedError

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        """The sizes of the tower, by the contents of config.json."""
        return TowerSizes.of(config["vision_config"], 1.0)

    def load_processor(self, place: str, **given: Any) -> Any:
        """What makes pixels of images; `given` are options of transformers' from_pretrained."""
        from transformers import AutoImageProcessor

        return AutoImageProcessor.from_pretrained(place, **given)

    def call(self, tokens: str) -> dict[str, Any]:
        """What the processor is called with besides images, as npukit, llama_factory or ms_swift does it."""
        return {}

    def pixels(self, processed: Mapping[str, Any]) -> Any:
        """The pixels of an image, of what the processor made; those of several images are put one behind the other."""
        return processed["pixel_values"]

    def text(self, size: ImageSize, number: int = 0) -> str:
        """What the tokenizer is given in the place of `token`; `number` images are before it in the conversation."""
        return self.token * size.tokens

    def limit(self, processor: Any, min_pixels: int | None, max_pixels: int | None) -> bool:
        """Let the processor resize images into these limits; False where it has sizes of its own."""
        return False

    def positions(self, is_image: NDArray[np.bool_], sizes: Iterable[ImageSize]) -> NDArray[np.int64] | None:
        """Positions [axes, tokens] of a row with these images and videos; None where they are those of plain text."""
        return None

    def groups(self, config: Any, is_image: NDArray[np.bool_], prompt: int) -> NDArray[np.int64] | None:
        """Which tokens of a row see each other, and are computed together: the number of each one's group, or -1 where
        it sees only those before it; None where no row of the model has groups. The first answer begins after `prompt`
        tokens. `config` is that of the model, as transformers has it.
        """
        return None

    def token_types(self, groups: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The same as token_type_ids of the model's own code, if it takes some."""
        return None

    def cross(
        self, config: Any, rows: Sequence[NDArray[np.int64]], images: Sequence[Sequence[ImageSize]]
    ) -> dict[str, Any] | None:
        """Which of its images each token of each row looks at, where layers of the language model do."""
        return None

    def tower_inputs(self, config: Any, grids: Sequence[Grid]) -> dict[str, Any]:
        """What the tower needs besides pixels; computed from the grids on the host, so that a step waits for nothing.

        `config` is that of the model, as transformers has it.
        """
        return {}

    def language_inputs(self, body: Any, input_ids: Any) -> dict[str, Any]:
        """What the language model takes of tokens besides their embeddings."""
        return {}

    def features(self, body: Any, pixel_values: Any, tower: Mapping[str, Any]) -> tuple[Any, Sequence[Any]]:
        """The features of all images, one after another [tokens, width], and those for deeper layers, if there are."""
        seen = body.get_image_features(pixel_values=pixel_values, return_dict=True, **tower).pooler_output
        return _flat(seen), ()


def groups_of_images(is_image: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Groups of a row whose images are one each, see `Vision.groups`.

    >>> groups_of_images(np.array([False, True, True, False, True]))
    array([-1,  0,  0, -1,  1])
    """
    import numpy as np

    begins = is_image & ~np.concatenate([[False], is_image[:-1]])
    return np.where(is_image, begins.cumsum() - 1, -1)


def _flat(features: Any) -> Any:
    """Features of images as one tensor [tokens, width]; transformers has a tensor, or one for each image."""
    import torch

    return torch.cat(list(features)) if isinstance(features, (list, tuple)) else features.flatten(0, -2)


@dataclass(frozen=True)
class GridVision(Vision):
    """Qwen-VL's way: images keep their shape, and their tokens have positions in time, height and width."""

    tower: tuple[str, ...] = ("model.visual",)
    projector: tuple[str, ...] = ("model.visual.merger",)
    limited_frames: int = 1
    """How often the processor counts the pixels of an image when it compares them with its limits."""
    uses_qwen_vl_utils: bool = True
    """Whether ms-swift resizes images with it, before the processor."""

    def tower_sizes(self, config: Mapping[str, Any]) -> TowerSizes:
        vision = config["vision_config"]
        return TowerSizes.of({"temporal_patch_size": 2, **vision}, vision.get("spatial_merge_size", 2) ** 2)

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
        """Text goes on after the highest position of an image or video, in time as well, as in the models' own code."""
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
        borders = vision_utils.get_vision_cu_seqlens(grid)
        made = {
            "grid_thw": grid,
            "position_ids": vision_utils.get_vision_position_ids(grid, merge),
            "cu_seqlens": borders,
            "max_seqlen": int(borders.diff().max()),
            "segment_ends": (tuple(borders[1:].tolist()),),
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
    """Images become one or several tiles of one size, and each tile the same number of tokens."""

    def tiles(self, processor: Any, width: int, height: int, call: Mapping[str, Any]) -> int:
        """How many tiles an image is cut into."""
        return 1

    def tile_tokens(self, config: Any) -> int:
        """How many tokens a tile becomes."""
        vision = config.vision_config
        patches = (int(vision.image_size) // int(vision.patch_size)) ** 2
        return patches + int(config.vision_feature_select_strategy == "full")

    def size(self, processor: Any, config: Any, width: int, height: int, call: Mapping[str, Any]) -> ImageSize:
        return ImageSize(self.tiles(processor, width, height, call) * self.tile_tokens(config))


def smart_resize(
    height: int, width: int, factor: int, min_pixels: float, max_pixels: float, frames: int = 1
) -> tuple[int, int]:
    """The nearest size with sides that `factor` divides and with so many pixels, as Qwen's processors choose it; of
    several frames, all of them together.

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
