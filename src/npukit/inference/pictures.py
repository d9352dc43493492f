"""Images and videos of conversations: found in messages, measured before they are decoded, read for the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npukit.inference.engine.prompt_media import Picture, PromptMedia
from npukit.llm.chat.messages import BadConversation, Message, WrittenMedia
from npukit.llm.data.media import kind_of_part, source_of
from npukit.llm.images import video
from npukit.llm.images.files import MAX_BYTES, BadImage, locate, shortened
from npukit.llm.images.images import Images, RequestImage, RowImage
from npukit.llm.medium import MediaItem

# From what a message names to the content, of a video also that of its frames, and a name for sentences.
Fetch = Callable[[MediaItem], tuple[bytes | list[bytes], str]]


def split_media(messages: Sequence[Message]) -> tuple[list[Message], list[MediaItem]]:
    """The messages with parts of the types image and video, as templates know them, and what they name, in their order.

    >>> part = {"type": "image_url", "image_url": {"url": "cat.png"}}
    >>> split_media([{"role": "user", "content": [part]}])
    ([{'role': 'user', 'content': [{'type': 'image'}]}], [MediaItem(kind='image', source='cat.png')])
    """
    media: list[MediaItem] = []
    converted = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(map(kind_of_part, content)):
            parts = []
            for part in content:
                if kind := kind_of_part(part):
                    media.append(MediaItem(kind, source_of(part)))
                    part = {"type": kind}
                parts.append(part)
            message = {**message, "content": parts}
        converted.append(message)
    return converted, media


def from_disk(folder: Path, media_dir: Path | None = None, beside: Sequence[Path] = ()) -> Fetch:
    """Read images and videos that the user of this machine names: paths, data URIs, bytes; see `locate`."""

    def fetch(medium: MediaItem) -> tuple[bytes | list[bytes], str]:
        source = medium.source
        if isinstance(source, (bytes, bytearray)):
            return bytes(source), f"the {medium.kind}"
        if isinstance(source, (list, tuple)) and medium.kind == "video":
            return [from_file(MediaItem("image", frame))[0] for frame in source], f"the {medium.kind}"
        return from_file(medium)

    def from_file(medium: MediaItem) -> tuple[Any, str]:
        file = locate(medium.source, folder, media_dir, beside, folders=medium.kind == "video")
        if file.is_dir():
            return [_content(frame) for frame in video.frame_files(file)], str(file)
        return _content(file, MAX_BYTES if medium.kind == "image" else video.MAX_BYTES), str(file)

    return fetch


def _content(file: Path, most: int = MAX_BYTES) -> bytes:
    if file.stat().st_size > most:
        raise BadImage(f"{file} has more than {most >> 20} MiB")
    return file.read_bytes()


class Pictures:
    """The images and videos of one conversation.

    >>> pictures = Pictures(images, media, from_disk(Path(".")))
    >>> prompt = chat.prompt(messages, media=pictures.written)
    >>> Request(tuple(prompt.ids), media=pictures.read(prompt.ids))
    """

    def __init__(self, images: Images | None, media: Sequence[MediaItem], fetch: Fetch) -> None:
        """Read the headers; raises BadConversation if one of them cannot be used."""
        if images is None:
            raise BadConversation("This model reads text only: leave out images, videos and audio.")
        self._images = images
        self._measured: list[RequestImage] = []
        for medium in media:
            try:
                self._measured.append(images.measure_content(medium.kind, *fetch(medium)))
            except (BadImage, OSError) as error:
                raise BadConversation(f"{NAMES[medium.kind]} cannot be used: {error}.") from None

    @property
    def written(self) -> WrittenMedia:
        """How the chat template writes them."""
        return WrittenMedia(self._images.markers, self._images.written(self._measured))

    def read(self, ids: Sequence[int]) -> PromptMedia:
        """Decode them for a prompt of these tokens; raises NpukitError."""
        return read(self._images, self._measured, ids)


def read(images: Images, measured: Sequence[RowImage | RequestImage], ids: Sequence[int]) -> PromptMedia:
    """The decoded images of a prompt of these tokens, with its positions; raises NpukitError.

    Each step of a video and each slice of an image is a picture of its own: they do not attend to each other, and text
    may lie between them.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    places = np.flatnonzero(images.is_image(tokens))
    if len(places) != sum(image.size.tokens for image in measured):
        raise BadConversation(f"The conversation has {images.tokens} in its text: leave it out.")
    pictures, at = [], 0
    for image in measured:
        pixels = np.ascontiguousarray(images.read(image), dtype=np.float32)
        parts = image.size.parts(image.size.grid[0] if image.kind == "video" else 1)
        patches = np.cumsum([math.prod(part.grid) for part in parts])
        ends = patches[:-1] * len(pixels) // patches[-1]  # some towers take patches, and some all of a part at once
        contents = np.split(pixels, ends) if len(parts) > 1 else [pixels]
        for number, (part, own) in enumerate(zip(parts, contents, strict=True)):
            digest = image.digest + number.to_bytes(4, "big")
            pictures.append(Picture(int(places[at]), part.tokens, part.grid, own, digest, image.kind))
            at += part.tokens
    return PromptMedia(tuple(pictures), images.positions(tokens, measured))


NAMES = {"image": "A picture", "video": "A video", "audio": "Audio"}


def named(source: Any) -> str:
    """A row's images, short enough to be written beside its answer."""
    return shortened(source) if isinstance(source, str) else f"<{type(source).__name__}>"
