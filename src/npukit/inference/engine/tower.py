"""Runs a model's vision tower: each image is computed once for its prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npukit.inference.engine.adapters import Adapters
from npukit.inference.engine.paged import to_device
from npukit.inference.engine.prompt_media import Picture
from npukit.inference.engine.scheduler import Chunk
from npukit.inference.engine.sequence import Sequence
from npukit.llm.families.sizes import ImageSize
from npukit.llm.families.vision import Vision
from npukit.llm.models.vision import Features, register, see_images

TOKENS = 16384  # of images that are computed together


class Tower:
    """The features of images for the language model.

    They are kept from the first chunk of the prompt that needs them to the last. After a preemption they are computed
    again, like the prompt's tokens.
    """

    def __init__(self, model: Any, vision: Vision, adapters: Adapters) -> None:
        register()
        see_images(model, vision)
        self._body, self._shape, self._vision, self._adapters = model.base_model, model.config, vision, adapters
        self._device = model.device

    def inputs(self, chunks: list[Chunk]) -> dict[str, Any]:
        """The language model's further arguments for these chunks."""
        self._compute(chunks)
        inputs = self._inputs(chunks, self._vision)
        if self._vision.audio and (heard := self._inputs(chunks, self._vision.audio)):
            inputs["audio"] = {"image_at": heard["image_at"], "features": heard["features"][0]}
        return inputs

    def _inputs(self, chunks: list[Chunk], tower: Vision) -> dict[str, Any]:
        """The features of one tower, and their places."""
        places: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        parts: list[Features] = []
        begin = 0
        for chunk in chunks:
            for picture in _pictures(chunk):
                if self._vision.of(picture.kind) is not tower:
                    continue
                start, stop = max(picture.start, chunk.start), min(picture.stop, chunk.stop)
                places.append(np.arange(start, stop) - chunk.start + begin)
                first, deeper = chunk.sequence.features[picture]
                own = slice(start - picture.start, stop - picture.start)
                parts.append((first[own], [features[own] for features in deeper]))
                if stop == picture.stop:
                    del chunk.sequence.features[picture]
            begin += chunk.stop - chunk.start
        if not parts:
            return {}
        at = to_device(torch.from_numpy(np.concatenate(places)), self._device)
        deeper = [torch.cat(features) for features in zip(*(deeper for _, deeper in parts), strict=True)]
        return {"image_at": at, "features": (torch.cat([first for first, _ in parts]), deeper)}

    def token_types(self, chunk: Chunk) -> Tensor | None:
        """`token_type_ids` for the model's own code: which tokens see each other, from the first of the sequence."""
        groups = chunk.sequence.groups
        if groups is None or chunk.start >= len(groups):
            return None
        padded = np.pad(groups, (0, max(0, chunk.stop - len(groups))), constant_values=-1)[: chunk.stop]
        types = self._vision.token_types(padded)
        return None if types is None else to_device(torch.from_numpy(types)[None], self._device)

    def cross(self, sequence: Sequence, start: int, stop: int) -> dict[str, Any] | None:
        """The images that tokens attend to, in models with cross-attention; generated ones use the last token's."""
        media = sequence.request.media
        if media is None:
            return None
        sizes = [ImageSize(picture.tokens, picture.grid) for picture in media.pictures]
        mask = self._vision.cross(self._shape, [np.array(sequence.request.prompt)], [sizes])
        if mask is None:
            return None
        places = torch.arange(start, stop).clamp(max=len(sequence.request.prompt) - 1)
        return _moved({**mask, "sees": mask["sees"][:, places]}, self._device)

    def _compute(self, chunks: list[Chunk]) -> None:
        """Compute the missing features, those of one adapter together."""
        missing = [
            (chunk.sequence, picture)
            for chunk in chunks
            for picture in _pictures(chunk)
            if picture not in chunk.sequence.features
        ]

        def same(pair: tuple[Sequence, Picture]) -> tuple[str, bool]:
            return pair[0].request.adapter or "", pair[1].kind == "audio"

        for (adapter, _), pictures in groupby(sorted(missing, key=same), key=same):
            for group in _groups(pictures):
                self._run(adapter or None, group)

    def _run(self, adapter: str | None, group: list[tuple[Sequence, Picture]]) -> None:
        pixels = torch.from_numpy(np.concatenate([picture.pixels for _, picture in group]))
        vision = self._vision.of(group[0][1].kind)
        inputs = vision.tower_inputs(self._shape, [picture.grid for _, picture in group])
        self._adapters.select([adapter], [pixels.shape[0]])
        on_device = to_device(pixels, self._device)
        first, deeper = vision.features(self._body, on_device, _moved(inputs, self._device))
        counts = [picture.tokens for _, picture in group]
        split = [torch.split(features, counts) for features in (first, *deeper)]
        for (sequence, picture), own in zip(group, zip(*split, strict=True), strict=True):
            sequence.features[picture] = (own[0], list(own[1:]))


def _pictures(chunk: Chunk) -> list[Picture]:
    media = chunk.sequence.request.media
    return media.within(chunk.start, chunk.stop) if media is not None else []


def _groups(pictures: Iterable[tuple[Sequence, Picture]]) -> Iterable[list[tuple[Sequence, Picture]]]:
    """Batches of images that fit into memory beside the cache, of at least one."""
    group: list[tuple[Sequence, Picture]] = []
    for sequence, picture in pictures:
        if group and sum(other.tokens for _, other in group) + picture.tokens > TOKENS:
            yield group
            group = []
        group.append((sequence, picture))
    yield group


def _moved(inputs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: to_device(value, device) if isinstance(value, Tensor) else value for name, value in inputs.items()}
