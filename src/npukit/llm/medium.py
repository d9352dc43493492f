"""What rows and messages have besides text: images, videos and audio."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["image", "video", "audio"]
TAGS: dict[Kind, str] = {"image": "<image>", "video": "<video>", "audio": "<audio>"}
"""What stands for each in a turn, as in LLaMA-Factory and ms-swift."""
COLUMNS: dict[str, Kind] = {"images": "image", "videos": "video", "audios": "audio"}


class Medium(NamedTuple):
    """An image, a video or audio as a row or a message names it: a path, a data URI, bytes, frames of a video."""

    kind: Kind
    source: Any
