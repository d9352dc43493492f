"""Sample negative texts for a question from the positive texts of other rows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from npukit.llm.data.files import RawRow

TRIES = 20  # attempts per text


def with_negatives(
    records: Iterator[RawRow], again: Callable[[], Iterator[RawRow]], column: str, count: int
) -> Iterator[RawRow]:
    """The rows with `count` texts of others as `negative`, chosen reproducibly. `again` reads all rows beforehand."""
    texts = sorted({text for record in again() for text in _texts(record, column)})
    for record in records:
        own = _texts(record, column)
        if not own or not isinstance(record.value, dict) or record.value.get("negative"):
            yield record
            continue
        draw = random.Random(record.number)
        drawn = (draw.choice(texts) for _ in range(TRIES * count))
        others = list(dict.fromkeys(text for text in drawn if text not in own))[:count]
        yield record._replace(value={**record.value, "negative": others})


def _texts(record: RawRow, column: str) -> list[str]:
    value: Any = record.value.get(column) if isinstance(record.value, dict) else None
    several = value if isinstance(value, (list, tuple)) else [value]
    return [text for text in several if isinstance(text, str)]
