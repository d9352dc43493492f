"""How many rows local data has, and about how many tokens they are: a quick look, without tokenising it all."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.llm.data.sources import Table, find_table

COUNTED = 32 * 2**20  # bytes of a data set that are counted row by row; the rest is worked out from them
SAMPLE = 200  # rows whose tokens are counted
BYTES_A_TOKEN = 4.0
MARKS = 12  # tokens that a chat template adds to a conversation, about


@dataclass(frozen=True)
class RowCount:
    """Rows, and their mean number of tokens."""

    count: int
    exact: bool
    tokens: float


def count_rows(config: Config) -> RowCount | None:
    """The rows to train on, before packing and before a part is set apart; None where data is not local."""
    tokens_of = _tokens_of(config.model.path)
    tables = []
    for source in config.data.train:
        try:
            table = find_table(source, config.data)
        except NpukitError:
            return None
        if table.hub:
            return None
        tables.append(_count(table, tokens_of, config.data.cutoff))
    count = sum(table.count for table in tables)
    tokens = sum(table.count * table.tokens for table in tables) / max(1, count)
    return RowCount(count, all(table.exact for table in tables), tokens)


def about_rows(table: Table) -> int:
    """How many rows a table on this machine has, roughly where it is large; a hub's says it itself, or 0."""
    if table.hub:
        return 0
    return _count(table, lambda _: 0.0, 1).count


def _count(table: Table, tokens_of: Callable[[Any], float], cutoff: int) -> RowCount:
    size = sum(file.stat().st_size for file in table.files)
    records = (record for record in table.records() if record.problem is None)
    rows = itertools.islice(records, table.limit)
    sample = [record.value for record in itertools.islice(rows, SAMPLE)]
    mean = sum(min(cutoff, tokens_of(row)) for row in sample) / max(1, len(sample))
    if all(file.suffix == ".parquet" for file in table.files):
        return RowCount(min(_parquet_rows(table.files), table.limit or 2**62), True, mean)
    if size <= COUNTED or (table.limit or 2**62) <= 10_000:
        return RowCount(len(sample) + sum(1 for _ in rows), True, mean)
    bytes_a_row = sum(len(json.dumps(row, ensure_ascii=False).encode()) + 1 for row in sample) / max(1, len(sample))
    return RowCount(min(int(size / bytes_a_row), table.limit or 2**62), False, mean)


def _parquet_rows(files: tuple[Path, ...]) -> int:
    from pyarrow.parquet import read_metadata

    return sum(read_metadata(file).num_rows for file in files)


def _tokens_of(model: str) -> Callable[[Any], float]:
    """Counts a row's tokens: with the model's tokenizer where it is a local file, else by bytes."""
    file = Path(model).expanduser() / "tokenizer.json"
    if file.is_file():
        try:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(file))
            return lambda row: MARKS + len(tokenizer.encode(" ".join(_texts(row))).ids)
        except Exception:  # whatever is wrong with it is told when it is loaded
            pass
    return lambda row: MARKS + len(" ".join(_texts(row)).encode()) / BYTES_A_TOKEN


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for item in below for text in _texts(item)]
