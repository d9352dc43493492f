"""What a prompt has besides tokens: images, whose features replace token embeddings, and positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from npukit.llm.families.sizes import Grid
from npukit.llm.medium import Kind


@dataclass(frozen=True, eq=False)
class Picture:
    """An image of a prompt, preprocessed for the model's vision tower."""

    start: int  # the index of its first token in the prompt
    tokens: int
    grid: Grid
    pixels: npt.NDArray[np.float32]
    digest: bytes  # of its content: cached blocks are reused only for the same image
    kind: Kind = "image"

    @property
    def stop(self) -> int:
        """The index after its last token."""
        return self.start + self.tokens


@dataclass(frozen=True, eq=False)
class PromptMedia:
    """The images of a prompt in order, and its tokens' positions [axes, tokens] if the model's family has its own."""

    pictures: tuple[Picture, ...]
    positions: npt.NDArray[np.int64] | None = None

    @cached_property
    def offset(self) -> int:
        """What is added to a generated token's index for its position."""
        return 0 if self.positions is None else int(self.positions.max()) + 1 - self.positions.shape[1]

    @property
    def stop(self) -> int:
        """The index after the last image."""
        return self.pictures[-1].stop

    @property
    def nbytes(self) -> int:
        """The memory of all pixels."""
        return sum(picture.pixels.nbytes for picture in self.pictures)

    def followed_by(self, tokens: int) -> PromptMedia:
        """The same for a prompt that continues with this many text tokens."""
        if self.positions is None:
            return self
        text = int(self.positions.max()) + 1 + np.arange(tokens)
        after = np.broadcast_to(text, (len(self.positions), tokens))
        return PromptMedia(self.pictures, np.concatenate([self.positions, after], axis=1))

    def within(self, start: int, stop: int) -> list[Picture]:
        """The images that have tokens between `start` and `stop`."""
        return [picture for picture in self.pictures if picture.start < stop and picture.stop > start]

    def digest(self, start: int, stop: int) -> bytes:
        """The digests of the images between `start` and `stop`: the token ids are the same for all images."""
        return b"".join(picture.digest for picture in self.within(start, stop))
