"""What to record, and how this is passed to the recording process."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal

from npukit.errors import NpukitError

Level = Literal["modules", "ops"]


@dataclass(frozen=True)
class RecordOptions:
    """What a recorder records."""

    output: str
    level: Level = "modules"
    steps: tuple[int, ...] | None = None  # None: all
    ranks: tuple[int, ...] | None = None
    tensors: bool = False  # save every tensor, not only its statistics
    fresh: bool = False  # compute statistics at every read, even if no write to the tensor is known
    only: str = ""  # only operators and tensors of the modules below this path
    max_rows: int | None = None  # rows to record at most; None: all

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> RecordOptions:
        given = json.loads(text)
        for name in ("steps", "ranks"):
            given[name] = tuple(given[name]) if given[name] is not None else None
        return cls(**given)


def parse_numbers(text: str, option: str) -> tuple[int, ...]:
    """Parse numbers and ranges as people write them.

    >>> parse_numbers("0-2,7", "--steps")
    (0, 1, 2, 7)
    """
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first + last) > 8:
            raise NpukitError(f"{option} takes numbers and ranges such as 0-2,7, not {text!r}.")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
