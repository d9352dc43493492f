"""What rows and messages have besides text: images, videos and audio."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["image", "video", "audio"]
TAGS: dict[Kind, str] = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
"""What stands for each in a turn, as in LLaMA-Factory and ms-swift."""
COLUMNS: dict[str, Kind] = {"images": "image", "videos": "video", "audios": "audio"}


class MediaItem(NamedTuple):
    """An image, a video or audio as a row or a message names it: a path, a data URI, bytes, frames of a video."""

    kind: Kind
    source: Any


class Objects(NamedTuple):
    """What the text of a row points at in its images: names for <ref-object>, and boxes for <bbox>, in their order."""

    names: tuple[str, ...]
    boxes: tuple[tuple[float, ...], ...]  # x and y of a point, or of two corners
    images: tuple[int, ...]  # the number of the image that each box is in
    are_shares: bool = False  # of the image's width and height, and not pixels


class RowMedia(tuple[MediaItem, ...]):
    """The media of a row, in their order."""

    objects: Objects | None = None
