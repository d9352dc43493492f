"""Tokenised rows on disk: made once by whoever comes first, then mapped into the memory of every process."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.cache import cache_folder, complete_or_absent, only_builder
from npukit.errors import NpukitError
from npukit.llm.chat.templates import Template
from npukit.llm.config.options import HEADS, DataOptions
from npukit.llm.data.check import find_layout, nothing_usable, row_of, stopped
from npukit.llm.data.count import about_rows
from npukit.llm.data.encode import END, SEPARATOR, Encoded, Encoder, Tokens
from npukit.llm.data.files import Record
from npukit.llm.data.layout import BadRow, LeftOut, Row
from npukit.llm.data.parallel import encode_all
from npukit.llm.data.problems import Problems
from npukit.llm.data.sources import Table
from npukit.report.progress import BETWEEN_LINES, lines
from npukit.report.writing import disk_errors_named

Tell = Callable[[str], None]
BATCH = 1024
PART = 1 << 24
CODE = ("chat", "chat/peers", "data")  # the packages that tokens depend on
TOKENS_DEPEND_ON = {"system", "cutoff", "train_on_prompt", "last_answer_only", "tokens", "thinking", "too_long"}
TOKENS_DEPEND_ON.add("train_on_empty_thought")


class Rows:
    """Tokenised rows; those of a folder are mapped, also in another process that they are sent to."""

    def __init__(
        self, tokens: Tokens, offsets: NDArray[np.int64], problems: Problems, end_id: int, folder: Path | None = None
    ) -> None:
        self.end_id = end_id  # the label of tokens that stand for the end
        self.offsets = offsets
        self.problems = problems
        self._tokens = tokens
        self._folder = folder

    @classmethod
    def open(cls, folder: Path, end_id: int) -> Rows:
        """Rows that `_make` left in a folder."""
        problems = Problems(**json.loads((folder / "problems.json").read_text()))
        tokens: Tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")
        return cls(tokens, np.load(folder / "offsets.npy"), problems, end_id, folder)

    @classmethod
    def of(cls, rows: Sequence[Tokens], problems: Problems | None = None, end_id: int = 0) -> Rows:
        """Rows kept in memory."""
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return cls(np.concatenate(rows), offsets, problems or Problems(), end_id)

    def __reduce__(self) -> Any:
        if self._folder is None:
            return Rows, (self._tokens, self.offsets, self.problems, self.end_id)
        return Rows.open, (self._folder, self.end_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tokens(self, number: int) -> Tokens:
        """A row's tokens; those that do not count in the loss as their complement."""
        return self._tokens[self.offsets[number] : self.offsets[number + 1]]

    def highest_token(self) -> int:
        """The highest number of a token, whether it counts or not."""
        # Read a part at a time: the file may be larger than the memory.
        parts = (self._tokens[start : start + PART] for start in range(0, len(self._tokens), PART))
        return max(int(_ids(part).max()) for part in parts)


def _ids(tokens: Tokens) -> Tokens:
    ids = np.where(tokens >= END, tokens - END, np.where(tokens < 0, ~tokens, tokens))
    return np.where(tokens == SEPARATOR, 0, ids).astype(np.int32)


def tokenised(table: Table, data: DataOptions, task: str, tokenizer: Any, template: Template, tell: Tell) -> Rows:
    """The table's rows as tokens: from the cache, or made now while other processes wait for them."""
    if not data.cache:
        problems = Problems()
        made_now = [encoded.tokens for encoded in _made(table, data, task, tokenizer, template, problems, tell)]
        _refuse_mostly_bad(table, problems, data.max_bad_rows)
        return Rows.of(made_now, problems, tokenizer.eos_token_id or 0)
    place = cache_folder() / "data" / _key(table, data, task, tokenizer, template)
    made = place / "rows" / "tokenised"
    if not made.exists():
        with only_builder(place, on_wait=lambda: tell(f"Another process tokenises {table.name}; waiting for it.")):
            if not made.exists():
                with complete_or_absent(made) as folder:
                    _make(folder, table, data, task, tokenizer, template, tell)
    rows = Rows.open(made, tokenizer.eos_token_id or 0)
    if data.bad_rows == "stop" and rows.problems.bad:
        raise NpukitError(stopped(rows.problems.first[0]))
    _refuse_mostly_bad(table, rows.problems, data.max_bad_rows)
    return rows


def _refuse_mostly_bad(table: Table, problems: Problems, most: float) -> None:
    """What is trained on the few rows that are left is rarely what was meant."""
    if problems.bad > most * (problems.bad + problems.rows):
        raise NpukitError(
            f"{table.name}: {problems.bad:,} of {problems.bad + problems.rows:,} rows cannot be used, such as "
            f"{problems.first[0].rstrip('.')}. Correct them, or raise data.max_bad_rows (now {most:g})."
        )


def _made(
    table: Table, data: DataOptions, task: str, tokenizer: Any, template: Template, problems: Problems, tell: Tell
) -> Iterator[Encoded]:
    """The table's rows; there is at least one."""
    encoder = Encoder(data, task, tokenizer, template)
    told, began, total = lines(f"Tokenising {table.name}", "rows", tell), time.monotonic(), 0
    for number, encoded in enumerate(encoded_rows(table, data, task, encoder, problems), 1):
        yield encoded
        if number % BATCH == 0 and time.monotonic() - began > BETWEEN_LINES:  # counting takes time too
            total = total or about_rows(table)
            told(number, total)
    if not problems.rows:
        raise NpukitError(nothing_usable(table, problems.first) if problems.bad else f"{table.name} has no rows.")


def _make(
    folder: Path, table: Table, data: DataOptions, task: str, tokenizer: Any, template: Template, tell: Tell
) -> None:
    """Fill the folder."""
    problems = Problems()
    lengths: list[int] = []
    with disk_errors_named(folder.parent, folder, "Set NPUKIT_CACHE to a folder with more room, or data.cache: false."):
        with (folder / "tokens.bin").open("wb") as file:
            for encoded in _made(table, data, task, tokenizer, template, problems, tell):
                file.write(encoded.tokens.tobytes())
                lengths.append(len(encoded.tokens))
        np.save(folder / "offsets.npy", np.cumsum([0, *lengths], dtype=np.int64))
        (folder / "problems.json").write_text(json.dumps(asdict(problems)))


def encoded_rows(table: Table, data: DataOptions, task: str, encoder: Encoder, problems: Problems) -> Iterator[Encoded]:
    """The table's usable rows, tokenised a batch at a time; `problems` grows as they are read."""
    for _, result in usable_rows(table, data, task, encoder, problems):
        problems.cut += any(encoded.was_cut for encoded in result)
        problems.unmatched += sum(encoded.unmatched for encoded in result)
        yield from result


def usable_rows(
    table: Table, data: DataOptions, task: str, encoder: Encoder, problems: Problems
) -> Iterator[tuple[Row, list[Encoded]]]:
    """Each usable row, and its tokens."""
    usable = _batches(_laid_out(table, data, task, problems))
    for batch, results in encode_all(encoder, usable, 1 if table.streaming else data.preprocessing_workers):
        for (record, row), result in zip(batch, results, strict=True):
            if isinstance(result, BadRow):
                _bad(record, result, data, problems)
                continue
            problems.rows += 1
            yield row, result


def _laid_out(table: Table, data: DataOptions, task: str, problems: Problems) -> Iterator[tuple[Record, Row]]:
    layout = find_layout(table.records(), table, task)
    usable = 0
    for record in table.records():
        if usable == table.limit:
            return
        try:
            yield record, row_of(record, layout, task)
            usable += 1
        except LeftOut:
            continue
        except BadRow as error:
            _bad(record, error, data, problems)


def _bad(record: Record, error: BadRow, data: DataOptions, problems: Problems) -> None:
    problems.add_bad(f"{record.place} {error}")
    if data.bad_rows == "stop":
        raise NpukitError(stopped(problems.first[0]))


def _batches(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while batch := list(islice(rows, BATCH)):
        yield batch


def _key(table: Table, data: DataOptions, task: str, tokenizer: Any, template: Template) -> str:
    """A name that changes with everything that the tokens depend on, and with nothing else."""
    parts = {
        "code": [_digest(file) for name in CODE for file in sorted((Path(__file__).parents[1] / name).glob("*.py"))],
        "libraries": [importlib.metadata.version(name) for name in ("tokenizers", "transformers", "jinja2")],
        "files": [(str(file.absolute()), _digest(file)) for file in table.files],
        "hub": table.fingerprint() if table.hub else None,
        "table": [asdict(table.layout), table.limit],
        "options": data.model_dump(include=TOKENS_DEPEND_ON),
        "text": [data.packing, data.template] if task == "pt" and data.tokens == "llama_factory" else None,
        "plain": data.template is None if task in HEADS else None,
        "task": task,
        "template": template.text,
        "today": date.today().isoformat() if "strftime_now" in template.text else None,
        "tokenizer": _tokenizer_content(tokenizer),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    try:
        with file.open("rb") as content:
            while piece := content.read(1 << 20):
                digest.update(piece)
    except OSError as error:
        raise NpukitError(f"{file} cannot be read: {error.strerror}.") from error
    return digest.hexdigest()


def _tokenizer_content(tokenizer: Any) -> list[str]:
    if tokenizer.is_fast:
        tokenizer.backend_tokenizer.no_padding()  # what the last call left there is not part of the tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)
    return [hashlib.sha256(content.encode()).hexdigest(), json.dumps(tokenizer.special_tokens_map, sort_keys=True)]
