"""The images of rows and requests for a model: measured by their headers when text is tokenised, read when needed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.families.vision import Grid, ImageSize, Vision
from npukit.llm.images.files import BadImage, locate, read_image, read_size
from npukit.llm.images.resize import resized, resizes

Inputs = dict[str, Any]
BLANK = 56  # the side of the image that a batch without one is given


@dataclass(frozen=True)
class RowImage:
    """An image of a row: its file, what it becomes, and the row that names it."""

    file: str
    size: ImageSize
    place: str = ""

    @property
    def source(self) -> Path:
        """Where its content is."""
        return Path(self.file)

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return self.file

    def stored(self) -> list[Any]:
        """As it is kept beside a row's tokens."""
        return [self.file, self.size.tokens, self.size.grid, self.place]

    @classmethod
    def restored(cls, file: str, tokens: int, grid: Sequence[int], place: str) -> RowImage:
        first, second, third = grid
        return cls(file, ImageSize(tokens, (first, second, third)), place)


@dataclass(frozen=True)
class RequestImage:
    """An image of a request: its content as it came, and what it becomes."""

    source: bytes = field(repr=False)
    size: ImageSize
    name: str
    place: str = ""

    @property
    def digest(self) -> bytes:
        """The same for the same content in the same size only."""
        return hashlib.sha256(repr(self.size).encode() + self.source).digest()


class Images:
    """How a model is given images: its family's way, its image processor, and the options.

    >>> images = Images(vision, processor, shape, data)
    >>> images.measure("cat.png").size.tokens
    391
    """

    def __init__(self, vision: Vision, processor: Any, shape: Any, data: DataOptions, blanks: bool = False) -> None:
        self.vision, self.processor = vision, processor
        self.token_id = int(shape.image_token_id)
        self._shape, self._data = shape, data
        self._turns = data.tokens == "npukit"  # LLaMA-Factory and ms-swift show images as they lie in the file
        self._call = vision.call(data.tokens)
        self._blanks = blanks
        validation = data.validation if isinstance(data.validation, tuple) else ()
        rows = dict.fromkeys(Path(each.path).expanduser() for each in (*data.train, *validation))
        self._beside = tuple(dict.fromkeys(each.parent if each.is_file() else each for each in rows if each.exists()))
        if data.tokens == "npukit" and (data.image_min_pixels or data.image_max_pixels):
            self._limit(data)

    def _limit(self, data: DataOptions) -> None:
        if not self.vision.limit(self.processor, data.image_min_pixels, data.image_max_pixels):
            raise NpukitError(
                f"data.image_max_pixels has no effect on {self._shape.model_type}, which makes all images one size: "
                "leave it out."
            )

    def with_blanks(self) -> Images:
        """The same, but a batch without images has a blank one: a tower that is trained or sharded runs on all ranks
        or on none."""
        return Images(self.vision, self.processor, self._shape, self._data, blanks=True)

    @property
    def marker(self) -> str:
        """What stands for an image in a prompt."""
        return self.vision.markers.get(self._data.tokens, self.vision.marker)

    def depends_on(self) -> Any:
        """What the number of an image's tokens depends on."""
        processor = {name: str(value) for name, value in sorted(self.processor.to_dict().items())}
        names = ("media_dir", "image_min_pixels", "image_max_pixels", "tokens")
        return [asdict(self.vision), processor, self._data.model_dump(mode="json", include=set(names))]

    def measure(self, source: Any) -> RowImage:
        """An image of a row by its header; raises BadImage."""
        file = locate(source, self._data.folder, self._data.media_dir, self._beside)
        return RowImage(str(file.absolute()), self._size(read_size(file, self._turns), str(file)))

    def measure_content(self, content: bytes, name: str) -> RequestImage:
        """An image of a request by its header; raises BadImage with `name`."""
        return RequestImage(content, self._size(read_size(content, self._turns, name), name), name)

    def positions(self, ids: NDArray[np.int64], images: Iterable[RequestImage]) -> NDArray[np.int64] | None:
        """Positions [3, tokens] of a prompt with these images; None where they are those of plain text."""
        return self.vision.positions(ids, (each.size for each in images), self.token_id)

    def _size(self, size: tuple[int, int], name: str) -> ImageSize:
        try:
            for each in resizes(size, self._data, self.vision, self.processor):
                size = each
            return self.vision.size(self.processor, self._shape, *size, self._call)
        except ValueError as error:
            raise BadImage(f"{name} {error}") from None

    def inputs(self, ids: NDArray[np.int64], rows: Sequence[tuple[slice, Sequence[RowImage]]]) -> Inputs:
        """What a batch has besides its tokens; `ids` are all of them in one row, `rows` their places and images.

        pixel_values and tower for the tower, image_at (where its features go), position_ids [3, tokens] where images
        have positions of their own.
        """
        images = [image for _, some in rows for image in some]
        found: Inputs = {}
        places = [self.vision.positions(ids[row], (each.size for each in some), self.token_id) for row, some in rows]
        if places and places[0] is not None:
            found["position_ids"] = np.concatenate([each for each in places if each is not None], axis=1)
        if images or self._blanks:
            pixels, grids = self.pixels(images) if images else self._blank()
            found["pixel_values"] = pixels
            found["image_at"] = np.flatnonzero(ids == self.token_id) if images else np.zeros(0, np.int64)
            found["tower"] = self.vision.tower_inputs(self._shape, grids)
        return found

    def pixels(self, images: Iterable[RowImage]) -> tuple[Any, list[Grid]]:
        """The pixels of images as the processor makes them, and the grids of their patches."""
        images = list(images)
        return np.concatenate([self.read(image) for image in images]), [image.size.grid for image in images]

    def read(self, image: RowImage | RequestImage) -> Any:
        """The pixels of an image as the processor makes them; raises NpukitError where it cannot be decoded."""
        try:
            read = read_image(image.source, self._turns, image.name)
        except (BadImage, FileNotFoundError) as error:
            where = f"{image.place} names an image that cannot be used: " if image.place else ""
            raise NpukitError(f"{where}{error}.") from None
        if self._size(read.size, image.name) != image.size:
            raise NpukitError(f"{image.name} has another size than when {image.place or 'its row'} was tokenised.")
        return self._processed(read)

    def _processed(self, image: Any) -> Any:
        ready = resized(image, self._data, self.vision, self.processor)
        return self.vision.pixels(self.processor(images=[ready], return_tensors="np", **self._call)["pixel_values"])

    def _blank(self) -> tuple[Any, list[Grid]]:
        from PIL import Image

        blank = Image.new("RGB", (BLANK, BLANK), "white")
        return self._processed(blank), [self._size(blank.size, "a blank image").grid]
