"""Estimate how many rows and tokens local data has, without tokenising all of it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError
from npukit.llm import families
from npukit.llm.config.options import Config
from npukit.llm.data.media import with_tags
from npukit.llm.data.row import BadRow, Layout
from npukit.llm.data.sources import Table, find_table

if TYPE_CHECKING:
    from npukit.llm.images.images import Images

COUNTED = 32 * 2**20  # bytes of a data set that are counted exactly; the rest is extrapolated
SAMPLE = 200  # rows whose tokens are counted
BYTES_A_TOKEN = 4.0
MARKS = 12  # tokens that a chat template adds to a conversation, approximately


@dataclass(frozen=True)
class RowCount:
    """The number of rows, their mean number of tokens, and how many of these belong to images."""

    count: int
    exact: bool
    tokens: float
    image_tokens: float = 0.0


def count_rows(config: Config) -> RowCount | None:
    """Count the training rows, before packing and before setting validation rows apart; None if data is not local."""
    tokens_of, image_tokens_of = _tokens_of(config.model.path), _image_tokens_of(config)
    tables = []
    for source in config.data.train:
        try:
            table = find_table(source, config.data)
        except NpukitError:
            return None
        if table.hub:
            return None
        tables.append(_count(table, tokens_of, config.data.cutoff, partial(image_tokens_of, table.layout)))
    count = sum(table.count for table in tables)
    tokens, image_tokens = (
        sum(table.count * getattr(table, name) for table in tables) / max(1, count)
        for name in ("tokens", "image_tokens")
    )
    return RowCount(count, all(table.exact for table in tables), tokens, image_tokens)


def about_rows(table: Table) -> int:
    """The number of rows of a local table, approximate if it is large; for a table on a hub, the hub's figure or 0."""
    if table.hub:
        return 0
    return _count(table, lambda _: 0.0, 1).count


def _count(
    table: Table,
    tokens_of: Callable[[Any], float],
    cutoff: int,
    image_tokens_of: Callable[[Any], float] = lambda row: 0.0,
) -> RowCount:
    size = sum(file.stat().st_size for file in table.files)
    records = (record for record in table.records() if record.problem is None)
    rows = itertools.islice(records, table.limit)
    sample = [record.value for record in itertools.islice(rows, SAMPLE)]
    of_images = [image_tokens_of(row) for row in sample]
    both = [min(cutoff, tokens_of(row) + seen) for row, seen in zip(sample, of_images, strict=True)]
    mean, seen = sum(both) / max(1, len(sample)), sum(of_images) / max(1, len(sample))
    if all(file.suffix == ".parquet" for file in table.files):
        return RowCount(min(_parquet_rows(table.files), table.limit or 2**62), True, mean, seen)
    if size <= COUNTED or (table.limit or 2**62) <= 10_000:
        return RowCount(len(sample) + sum(1 for _ in rows), True, mean, seen)
    bytes_a_row = sum(len(json.dumps(row, ensure_ascii=False).encode()) + 1 for row in sample) / max(1, len(sample))
    return RowCount(min(int(size / bytes_a_row), table.limit or 2**62), False, mean, seen)


def _parquet_rows(files: tuple[Path, ...]) -> int:
    from pyarrow.parquet import read_metadata

    return sum(read_metadata(file).num_rows for file in files)


def _tokens_of(model: str) -> Callable[[Any], float]:
    """A function that counts a row's tokens, with the model's tokenizer if it is a local file, or else from bytes."""
    file = Path(model).expanduser() / "tokenizer.json"
    if file.is_file():
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            return lambda row: MARKS + len(tokenizer.encode(" ".join(_texts(row))).ids)
        except Exception:  # whatever is wrong with it is reported when it is loaded
            pass
    return lambda row: MARKS + len(" ".join(_texts(row)).encode()) / BYTES_A_TOKEN


def _image_tokens_of(config: Config) -> Callable[[Layout, Any], float]:
    """A function that counts a row's image tokens from file headers, if the vision-language model is local."""
    images = _images(config)
    return (lambda layout, row: _measured(images, layout, row)) if images else (lambda layout, row: 0.0)


def _images(config: Config) -> Images | None:
    folder = Path(config.model.path).expanduser()
    if not (folder / "config.json").is_file() or not all(map(find_spec, ("torch", "transformers", "PIL"))):
        return None
    if families.vision_of(json.loads((folder / "config.json").read_text(encoding="utf-8"))) is None:
        return None
    from npukit.llm.models.loading import load_config, load_images

    return load_images(config.model, str(folder), load_config(config.model, str(folder)), config.data)


def _measured(images: Images, layout: Layout, row: Any) -> float:
    """Skip what cannot be used; it is reported when it is tokenised."""
    from npukit.llm.data.layout import renamed
    from npukit.llm.images.files import BadImage

    try:
        return sum(images.measure(medium).size.tokens for medium in with_tags(renamed(row, layout))[1])
    except (BadRow, BadImage, OSError):
        return 0.0


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in below for text in _texts(item)]
