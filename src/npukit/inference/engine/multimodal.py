"""What a prompt has besides tokens: pictures, whose features take the place of embeddings, and positions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from npukit.llm.families.vision import Grid


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of a prompt, ready for the model's tower."""

    start: int  # the place of its first token in the prompt
    tokens: int
    grid: Grid
    pixels: npt.NDArray[np.float32]
    digest: bytes  # of its content: what is computed of the prompt is reused only for the same picture

    @property
    def stop(self) -> int:
        """The place behind its last token."""
        return self.start + self.tokens


@dataclass(frozen=True, eq=False)
class Multimodal:
    """The pictures of a prompt in their order, and the positions [3, tokens] of its tokens where the model's family has
    some of its own.
    """

    pictures: tuple[Picture, ...]
    positions: npt.NDArray[np.int64] | None = None

    @cached_property
    def offset(self) -> int:
        """What is added to the place of a generated token for its position."""
        return 0 if self.positions is None else int(self.positions.max()) + 1 - self.positions.shape[1]

    @property
    def stop(self) -> int:
        """The place behind the last picture."""
        return self.pictures[-1].stop

    @property
    def nbytes(self) -> int:
        """The memory of all pixels."""
        return sum(picture.pixels.nbytes for picture in self.pictures)

    def followed_by(self, tokens: int) -> Multimodal:
        """The same for a prompt with so many tokens of text more."""
        if self.positions is None:
            return self
        text = int(self.positions.max()) + 1 + np.arange(tokens)
        return Multimodal(self.pictures, np.concatenate([self.positions, np.broadcast_to(text, (3, tokens))], axis=1))

    def within(self, start: int, stop: int) -> list[Picture]:
        """The pictures of which some tokens lie between two places."""
        return [picture for picture in self.pictures if picture.start < stop and picture.stop > start]

    def digest(self, start: int, stop: int) -> bytes:
        """What names the pictures between two places, beside their tokens, which are the same for all pictures."""
        return b"".join(picture.digest for picture in self.within(start, stop))
