"""The images and videos of rows and requests: measured by their headers when text is tokenised, and read when they are
needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.errors import NpukitError
from npukit.llm.config.options import DataOptions
from npukit.llm.data.row import Conversation
from npukit.llm.families.sizes import Grid, ImageSize
from npukit.llm.families.vision import Vision
from npukit.llm.images.audio import read_length, read_samples
from npukit.llm.images.files import BadImage, locate, read_image, read_size
from npukit.llm.images.objects import pointed_at
from npukit.llm.images.resize import resized, resizes, scaled_down
from npukit.llm.images.sampling import Sampled, Sampling
from npukit.llm.images.video import MAX_SECONDS, Source, frame_files, is_frame, read_frames, read_header
from npukit.llm.medium import Kind, MediaItem, Objects

Inputs = dict[str, Any]
NUMBER = "{number}"  # in a marker: its number among those of its kind, from 1
BLANK = 56  # the side of the blank image for a batch without images


@dataclass(frozen=True)
class RowImage:
    """An image or a video of a row: its file or frames, its size in the model, and the row that names it."""

    files: tuple[str, ...]
    size: ImageSize
    place: str = ""
    kind: Kind = "image"

    @property
    def source(self) -> Any:
        """The location of its content."""
        paths = [Path(file) for file in self.files]
        return paths[0] if len(paths) == 1 and not (self.kind == "video" and is_frame(paths[0])) else paths

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.files[0] if len(self.files) == 1 else f"{self.files[0]} and {len(self.files) - 1} other frames"

    @property
    def digest(self) -> bytes:
        """A hash of files and size; files do not change while a model is trained."""
        return hashlib.sha256(repr((self.size, self.files)).encode()).digest()

    def stored(self) -> list[Any]:
        """The form in which it is stored next to a row's tokens."""
        return [self.files, asdict(self.size), self.place, self.kind]

    @classmethod
    def restored(cls, files: Sequence[str], size: Mapping[str, Any], place: str, kind: Kind) -> RowImage:
        first, second, third = size["grid"]
        slices = tuple((one, two, three) for one, two, three in size["slices"])
        whole = ImageSize(size["tokens"], (first, second, third), size["interval"], tuple(size["seconds"]), slices)
        return cls(tuple(files), whole, place, kind)


@dataclass(frozen=True)
class RequestImage:
    """An image or a video of a request: its original content, and its size in the model."""

    source: Any = field(repr=False)  # bytes, or the bytes of each frame
    size: ImageSize
    name: str
    place: str = ""
    kind: Kind = "image"

    @property
    def digest(self) -> bytes:
        """A hash of content and size."""
        digest = hashlib.sha256(repr(self.size).encode())
        for content in [self.source] if isinstance(self.source, bytes) else self.source:
            digest.update(hashlib.sha256(content).digest())
        return digest.digest()


class Images:
    """How images and videos are passed to a model: its family's vision settings, its image processor, the settings of
    its video processor, and the options.

    >>> images = Images(vision, processor, shape, data)
    >>> images.measure(MediaItem("image", "cat.png")).size.tokens
    391
    """

    def __init__(
        self,
        vision: Vision,
        processor: Any,
        shape: Any,
        data: DataOptions,
        video_settings: Mapping[str, Any] | None = None,
        blanks: bool = False,
        audio_processor: Any = None,
    ) -> None:
        self.vision, self.processor = vision, processor
        self.audio_processor = audio_processor or processor
        if vision.prefix and data.tokens == "llama_factory":
            raise NpukitError(
                f"LLaMA-Factory's row layout for {shape.model_type} is not supported: use a configuration "
                "of npukit or ms-swift."
            )
        self._shape, self._data, self._video_settings = shape, data, video_settings or {}
        self._sampling = Sampling(vision, processor, shape, data, self._video_settings) if vision.video else None
        self._turns = data.tokens == "npukit"  # LLaMA-Factory and ms-swift do not apply EXIF rotation
        self._call = vision.call(data.tokens)
        self._blanks = blanks
        self.max_video_seconds = MAX_SECONDS
        validation = data.validation if isinstance(data.validation, tuple) else ()
        rows = dict.fromkeys(Path(each.path).expanduser() for each in (*data.train, *validation))
        self._beside = tuple(dict.fromkeys(each.parent if each.is_file() else each for each in rows if each.exists()))
        if data.tokens == "npukit" and (data.image_min_pixels or data.image_max_pixels):
            self._limit(data)

    def _limit(self, data: DataOptions) -> None:
        if not self.vision.limit(self.processor, data.image_min_pixels, data.image_max_pixels):
            raise NpukitError(
                f"data.image_max_pixels has no effect on {self._shape.model_type}, which resizes all images to one "
                "size: leave it out."
            )

    def with_blanks(self) -> Images:
        """The same, but a batch without images gets a blank one: a tower that is trained or sharded must run on all
        ranks or on none.
        """
        return Images(
            self.vision, self.processor, self._shape, self._data, self._video_settings, True, self.audio_processor
        )

    @property
    def markers(self) -> dict[Kind, str]:
        """The text that represents an image or a video in a prompt."""
        markers: dict[Kind, str] = {part.kind: part.markers.get(self._data.tokens, part.marker) for part in self._parts}
        return markers | ({"video": self.vision.video.marker} if self.vision.video else {})

    @property
    def _parts(self) -> list[Vision]:
        """The media of each tower."""
        return [self.vision, *([self.vision.audio] if self.vision.audio else [])]

    def written(self, images: Sequence[RowImage | RequestImage]) -> tuple[tuple[str, str], ...]:
        """For each medium, the part of its marker to replace, and the replacement. Numbered ones are replaced whole."""
        made: list[tuple[str, str]] = []
        for number, image in enumerate(images):
            before = sum(other.kind == image.kind for other in images[:number])
            part = self.vision.of(image.kind)
            marker, text = self.markers[image.kind], part.text(image.size, before)
            if image.kind == "video":
                assert self.vision.video
                made.append((marker, self.vision.video.text(image.size)))
            elif NUMBER in marker:
                made.append((marker, marker.replace(NUMBER, str(before + 1)).replace(part.token, text)))
            else:
                made.append((part.token, text))
        return tuple(made)

    def is_image(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Which tokens belong to images and videos."""
        return np.isin(ids, self.token_ids)

    @property
    def token_ids(self) -> list[int]:
        """The ids of the tokens that represent parts of images and videos."""
        return [number for part in self._parts for number in self._ids_of(part)]

    def _ids_of(self, part: Vision) -> list[int]:
        kinds = [kind for kind in part.kinds if part.of(kind) is part]
        return [int(getattr(self._shape, f"{kind}_token_id")) for kind in kinds]

    @property
    def tokens(self) -> str:
        """The tokens that text must not contain, for a message."""
        video = [self.vision.video.token] if self.vision.video else []
        return " or ".join([*(part.token for part in self._parts), *video])

    def depends_on(self) -> Any:
        """What the number of tokens of an image or a video depends on."""
        both = {**self.audio_processor.to_dict(), **self.processor.to_dict()}
        processor = {name: str(value) for name, value in sorted(both.items())}
        names = {name for name in type(self._data).model_fields if name.startswith(("image_", "video_"))}
        options = self._data.model_dump(mode="json", include={"media_dir", "tokens", *names})
        return [asdict(self.vision), processor, options, {**self._video_settings}]

    def measure(self, medium: MediaItem) -> RowImage:
        """Measure an image or a video of a row by its header; raises BadImage."""
        self._check(medium.kind)
        if medium.kind != "video":
            file = self._located(medium.source)
            size = self._measured(medium.kind, file, str(file))
            return RowImage((str(file.absolute()),), size, kind=medium.kind)
        files = self._video_files(medium.source)
        names = tuple(str(file.absolute()) for file in files)
        row = RowImage(names, ImageSize(0), kind="video")
        return RowImage(names, self._video(row.source, row.name).size, kind="video")

    def _located(self, source: Any) -> Path:
        return locate(source, self._data.folder, self._data.media_dir, self._beside)

    def _check(self, kind: Kind) -> None:
        if kind not in self.markers:
            raise BadImage(f"{self._shape.model_type} takes no {kind}")

    def _measured(self, kind: Kind, source: Path | bytes, name: str) -> ImageSize:
        """Measure an image or audio by its header."""
        if kind == "image":
            return self._size(read_size(source, self._turns, name), name)
        return self._audio_size(read_length(source, self.audio_processor.sampling_rate, name), name)

    def _audio_size(self, samples: int, name: str) -> ImageSize:
        try:
            return self.vision.of("audio").audio_size(self.audio_processor, samples)
        except ValueError as error:
            raise BadImage(f"{name} {error}") from None

    def _video_files(self, source: Any) -> list[Path]:
        """The file of a video, or the files of its frames."""
        if isinstance(source, (list, tuple)):
            return [self._located(frame) for frame in source]
        place = locate(source, self._data.folder, self._data.media_dir, self._beside, folders=True)
        return frame_files(place) if place.is_dir() else [place]

    def measure_content(self, kind: Kind, content: Any, name: str) -> RequestImage:
        """Measure an image or a video of a request by its header; raises BadImage with `name`."""
        self._check(kind)
        size = self._video(content, name).size if kind == "video" else self._measured(kind, content, name)
        return RequestImage(content, size, name, kind=kind)

    def positions(self, ids: NDArray[np.int64], images: Iterable[RequestImage | RowImage]) -> NDArray[np.int64] | None:
        """Positions [axes, tokens] of a prompt with these images; None if they are those of plain text."""
        is_seen = np.isin(ids, self._ids_of(self.vision))
        return self.vision.positions(
            is_seen, (each.size for each in images if self.vision.of(each.kind) is self.vision)
        )

    def groups(self, ids: NDArray[np.int64], prompt: int) -> NDArray[np.int64] | None:
        """Which tokens of a row attend to each other; see `Vision.groups`."""
        return self.vision.groups(self._shape, self.is_image(ids), prompt)

    def pointed_at(self, turns: Conversation, objects: Objects, images: Sequence[RowImage]) -> Conversation:
        """The turns with the names and boxes of objects in these images inserted; raises BadRow, BadImage."""
        sizes = [
            (read_size(image.source, self._turns, image.name), self.vision.box_frame(self.processor, image.size))
            for image in images
            if image.kind == "image"
        ]
        return pointed_at(turns, objects, self.vision.boxes, sizes)

    def _size(self, size: tuple[int, int], name: str) -> ImageSize:
        size = scaled_down(size, self._data.image_scaled_pixels)
        try:
            for each in resizes(size, self._data, self.vision, self.processor):
                size = each
            return self.vision.size(self.processor, self._shape, *size, self._call)
        except ValueError as error:
            raise BadImage(f"{name} {error}") from None

    def _video(self, source: Source, name: str) -> Sampled:
        assert self._sampling
        try:
            return self._sampling(read_header(source, name, self.max_video_seconds))
        except ValueError as error:
            raise BadImage(f"{name} {error}") from None

    def inputs(
        self,
        ids: NDArray[np.int64],
        rows: Sequence[tuple[slice, Sequence[RowImage]]],
        prompts: Sequence[int] | None = None,
    ) -> Inputs:
        """The inputs of a batch besides its tokens. `ids` are all tokens in one row, `rows` their places and images,
        and `prompts` the number of tokens before each row's first answer.

        The result has pixel_values and tower for the tower, image_at (where its features go), audio with the same for a
        second tower, position_ids [axes, tokens] if images have positions of their own, and token_type_ids if some
        tokens attend to each other.
        """
        images = [image for _, some in rows for image in some]
        inputs: Inputs = {}
        places = [self.positions(ids[row], some) for row, some in rows]
        if places and places[0] is not None:
            inputs["position_ids"] = np.concatenate([each for each in places if each is not None], axis=1)
        lengths = prompts or [len(ids[row]) for row, _ in rows]
        groups = [self.groups(ids[row], length) for (row, _), length in zip(rows, lengths, strict=True)]
        types = [self.vision.token_types(own) for own in groups if own is not None]
        if types and types[0] is not None:
            inputs["token_type_ids"] = np.concatenate([own for own in types if own is not None])
        inputs |= self._for_tower(self.vision, images, ids)
        if self.vision.audio and (heard := self._for_tower(self.vision.audio, images, ids)):
            inputs["audio"] = _as_tensors(heard)
        if images or self._blanks:
            sizes = [[image.size for image in some] for _, some in rows]
            if cross := self.vision.cross(self._shape, [ids[row] for row, _ in rows], sizes):
                inputs["cross"] = cross
        return inputs

    def _for_tower(self, part: Vision, images: Sequence[RowImage], ids: NDArray[np.int64]) -> Inputs:
        """The input of a tower for these tokens, and where its output belongs; nothing if there is no input."""
        own = [image for image in images if self.vision.of(image.kind) is part]
        if not own and not self._blanks:
            return {}
        pixels, grids = self.pixels(own) if own else self._blank(part)
        places = np.flatnonzero(np.isin(ids, self._ids_of(part))) if own else np.zeros(0, np.int64)
        return {"pixel_values": pixels, "image_at": places, "tower": part.tower_inputs(self._shape, grids)}

    def pixels(self, images: Iterable[RowImage]) -> tuple[Any, list[Grid]]:
        """The processor's pixels for images and videos, and the grids of their patches."""
        images = list(images)
        grids = [grid for image in images for grid in image.size.slices or (image.size.grid,)]
        return np.concatenate([self.read(image) for image in images]), grids

    def read(self, image: RowImage | RequestImage) -> Any:
        """The processor's pixels for one image or video; raises NpukitError if it cannot be decoded."""
        try:
            if image.kind == "video":
                return self._read_video(image)
            if image.kind == "audio":
                return self._read_audio(image)
            read = read_image(image.source, self._turns, image.name)
            changed = self._size(read.size, image.name) != image.size
        except (BadImage, FileNotFoundError) as error:
            where = f"{image.place} names {image.kind} that cannot be used: " if image.place else ""
            raise NpukitError(f"{where}{error}.") from None
        if changed:
            raise _changed(image)
        return self._processed(read)

    def _read_video(self, video: RowImage | RequestImage) -> NDArray[np.float32]:
        """Two frames make a patch: the first half of the processor's result for one, the second half for the other."""
        sampled = self._video(video.source, video.name)
        if sampled.size != video.size:
            raise _changed(video)
        steps: list[Any] = []
        for number, frame in enumerate(read_frames(video.source, sampled.frames, video.name)):
            for size in sampled.sizes:
                frame = frame if frame.size == size else frame.resize(size)
            made = self.processor(images=[frame], return_tensors="np", do_resize=False)["pixel_values"]
            made = np.array(made, dtype=np.float32).reshape(len(made), -1, 2, self.processor.patch_size**2)
            if number % 2:
                steps[-1][:, :, 1] = made[:, :, 1]
            else:  # if the number is odd, the last frame is repeated
                steps.append(made)
        return np.concatenate(steps).reshape(sum(map(len, steps)), -1)

    def _read_audio(self, audio: RowImage | RequestImage) -> Any:
        samples = read_samples(audio.source, self.audio_processor.sampling_rate, audio.name)
        if self._audio_size(len(samples), audio.name) != audio.size:
            raise _changed(audio)
        return self.vision.of("audio").heard(self.audio_processor, samples)

    def _processed(self, image: Any) -> Any:
        ready = resized(image, self._data, self.vision, self.processor)
        return self.vision.pixels(self.processor(images=[ready], return_tensors="np", **self._call))

    def _blank(self, part: Vision) -> tuple[Any, list[Grid]]:
        if part.kind == "audio":
            silence = np.zeros(self.audio_processor.sampling_rate, np.float32)
            size = part.audio_size(self.audio_processor, len(silence))
            return part.heard(self.audio_processor, silence), [size.grid]
        from PIL import Image

        blank = Image.new("RGB", (BLANK, BLANK), "white")
        size = self._size(blank.size, "a blank image")
        return self._processed(blank), list(size.slices or (size.grid,))


def _as_tensors(inputs: Inputs) -> Inputs:
    import torch

    return {name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in inputs.items()}


def _changed(image: RowImage | RequestImage) -> NpukitError:
    return NpukitError(
        f"{image.name} no longer has the size that it had when {image.place or 'its row'} was tokenised."
    )
