"""Pictures in conversations: found in messages, measured before anything is decoded, and read for the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npukit.inference.engine.multimodal import Multimodal, Picture
from npukit.llm.chat.messages import IMAGE, BadConversation, Message, WrittenImages
from npukit.llm.data.media import is_image, source_of
from npukit.llm.images.files import MAX_BYTES, BadImage, locate, shortened
from npukit.llm.images.images import Images, RequestImage

Fetch = Callable[[Any], tuple[bytes, str]]  # from what a message names to the content and a name for sentences


def split_images(messages: Sequence[Message]) -> tuple[list[Message], list[Any]]:
    """The messages with parts of the type image, as templates know them, and what they name, in their order.

    >>> part = {"type": "image_url", "image_url": {"url": "cat.png"}}
    >>> split_images([{"role": "user", "content": [part]}])
    ([{'role': 'user', 'content': [{'type': 'image'}]}], ['cat.png'])
    """
    sources: list[Any] = []
    made = []
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(map(is_image, content)):
            sources += [source_of(part) for part in content if is_image(part)]
            message = {**message, "content": [IMAGE if is_image(part) else part for part in content]}
        made.append(message)
    return made, sources


def from_disk(folder: Path, media_dir: Path | None = None, beside: Sequence[Path] = ()) -> Fetch:
    """Pictures that the user of this machine names: paths, data URIs, bytes; see `locate`."""

    def fetch(source: Any) -> tuple[bytes, str]:
        if isinstance(source, (bytes, bytearray)):
            return bytes(source), "the picture"
        file = locate(source, folder, media_dir, beside)
        if file.stat().st_size > MAX_BYTES:
            raise BadImage(f"{file} has more than {MAX_BYTES >> 20} MiB")
        return file.read_bytes(), str(file)

    return fetch


class Pictures:
    """The pictures of one conversation.

    >>> pictures = Pictures(images, sources, from_disk(Path(".")))
    >>> prompt = chat.prompt(messages, images=pictures.written)
    >>> Request(tuple(prompt.ids), multimodal=pictures.read(prompt.ids))
    """

    def __init__(self, images: Images | None, sources: Sequence[Any], fetch: Fetch) -> None:
        """Look at the headers; raises BadConversation where one of them cannot be used."""
        if images is None:
            raise BadConversation("This model reads text only: leave the pictures out.")
        self._images = images
        try:
            self._measured: list[RequestImage] = [images.measure_content(*fetch(source)) for source in sources]
        except (BadImage, OSError) as error:
            raise BadConversation(f"A picture cannot be used: {error}.") from None

    @property
    def written(self) -> WrittenImages:
        """How they are written into the conversation."""
        vision = self._images.vision
        return WrittenImages(
            self._images.marker, vision.token, tuple(vision.text(image.size) for image in self._measured)
        )

    def read(self, ids: Sequence[int]) -> Multimodal:
        """Decode them for a prompt of these tokens; raises NpukitError."""
        return read(self._images, self._measured, ids)


def read(images: Images, measured: Sequence[RequestImage], ids: Sequence[int]) -> Multimodal:
    """The pictures of a prompt of these tokens, decoded, with its positions; raises NpukitError."""
    tokens = np.asarray(ids, dtype=np.int64)
    places = np.flatnonzero(tokens == images.token_id)
    if len(places) != sum(image.size.tokens for image in measured):
        raise BadConversation(f"The conversation has {images.vision.token} in its text: leave it out.")
    pictures, at = [], 0
    for image in measured:
        pixels = np.ascontiguousarray(images.read(image), dtype=np.float32)
        pictures.append(Picture(int(places[at]), image.size.tokens, image.size.grid, pixels, image.digest))
        at += image.size.tokens
    return Multimodal(tuple(pictures), images.positions(tokens, measured))


def named(source: Any) -> str:
    """What a row names, short enough to be written beside its answer."""
    return shortened(source) if isinstance(source, str) else f"<{type(source).__name__}>"
