"""Tokenised rows on disk: created by the first process that needs them, then memory-mapped by every process."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.cache import cache_folder, complete_or_absent, only_builder
from npukit.errors import NpukitError
from npukit.llm.data.check import first_bad_row, nothing_usable
from npukit.llm.data.encode import MORE, SEPARATOR, Encoded, Encoder, Tokens, are_bytes
from npukit.llm.data.encoded import Counter, encoded_rows
from npukit.llm.data.parts import make_parts
from npukit.llm.data.problems import Problems
from npukit.llm.data.sources import Table
from npukit.llm.images.images import RowImage
from npukit.llm.images.table import ImageTable
from npukit.report.report import counted
from npukit.report.writing import disk_errors_named

Log = Callable[[str], None]
PART = 1 << 24
MORE_ROOM = "Set NPUKIT_CACHE to a folder with more room, or data.cache: false."
CODE = ("chat", "chat/peers", "data", "images", "tasks")  # the packages that tokens depend on
TOKENS_DEPEND_ON = {"system", "cutoff", "train_on_prompt", "last_answer_only", "tokens", "thinking", "too_long"}
TOKENS_DEPEND_ON.add("train_on_empty_thought")


class Rows:
    """Tokenised rows. Those in a folder are memory-mapped, also in another process that they are sent to."""

    def __init__(
        self,
        tokens: Tokens,
        offsets: NDArray[np.int64],
        problems: Problems,
        end_id: int,
        folder: Path | None = None,
        images: ImageTable | None = None,
    ) -> None:
        self.end_id = end_id  # the label of tokens that stand for the end
        self.offsets = offsets
        self.problems = problems
        self._tokens = tokens
        self._folder = folder
        self._images = images

    @classmethod
    def open(cls, folder: Path, end_id: int) -> Rows:
        """Open rows that were tokenised into a folder."""
        problems = Problems(**json.loads((folder / "problems.json").read_text()))
        tokens: Tokens = np.memmap(folder / "tokens.bin", dtype=np.int32, mode="r")
        return cls(tokens, np.load(folder / "offsets.npy"), problems, end_id, folder, ImageTable.open(folder))

    @classmethod
    def of(cls, rows: Sequence[Encoded], problems: Problems | None = None, end_id: int = 0) -> Rows:
        """Rows kept in memory."""
        offsets = np.cumsum([0, *(len(row.tokens) for row in rows)], dtype=np.int64)
        images = ImageTable.of([row.images for row in rows])
        return cls(np.concatenate([row.tokens for row in rows]), offsets, problems or Problems(), end_id, images=images)

    def __reduce__(self) -> Any:
        if self._folder is None:
            return Rows, (self._tokens, self.offsets, self.problems, self.end_id, None, self._images)
        return Rows.open, (self._folder, self.end_id)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def tokens(self, number: int) -> Tokens:
        """A row's tokens; those that do not count in the loss are complements."""
        return self._tokens[self.offsets[number] : self.offsets[number + 1]]

    def images(self, number: int) -> list[RowImage]:
        """A row's images, in order."""
        return self._images[number] if self._images else []

    def highest_token(self) -> int:
        """The highest token id, whether it counts or not."""
        # Read in parts, because the file may be larger than the memory.
        parts = (self._tokens[start : start + PART] for start in range(0, len(self._tokens), PART))
        return max(int(_ids(part).max()) for part in parts)


def _ids(tokens: Tokens) -> Tokens:
    ids = np.where(tokens < 0, ~tokens, tokens % MORE)
    return np.where((tokens == SEPARATOR) | are_bytes(tokens), 0, ids).astype(np.int32)


def tokenised(table: Table, encoder: Encoder, log: Log) -> Rows:
    """The table's rows as tokens: from the cache, or created now while other processes wait."""
    data = encoder.data
    if not data.cache:
        problems, counter = Problems(), Counter(table, log)
        made_now = list(counter.count(encoded_rows(table, encoder, problems)))
        _refuse_unusable(table, problems, data.cutoff)
        _refuse_mostly_bad(table, problems, data.max_bad_rows)
        return Rows.of(made_now, problems, encoder.end_id)
    place = cache_folder() / "data" / _key(table, encoder)
    made = place / "rows" / "tokenised"
    if not made.exists():

        def on_wait() -> None:
            log(f"{table.name} is being tokenised by another rank or run; waiting for it.")

        with only_builder(place, on_wait):
            if not made.exists():
                with disk_errors_named(place, advice=MORE_ROOM):
                    parts = make_parts(place / "parts", table, encoder, log)
                    _refuse_unusable(table, parts.problems, data.cutoff)
                    with complete_or_absent(made) as folder:
                        parts.join(folder)
                shutil.rmtree(place / "parts")
    rows = Rows.open(made, encoder.end_id)
    if data.bad_rows == "stop" and rows.problems.bad:
        raise NpukitError(first_bad_row(rows.problems.first[0]))
    _refuse_mostly_bad(table, rows.problems, data.max_bad_rows)
    return rows


def _refuse_mostly_bad(table: Table, problems: Problems, most: float) -> None:
    """Refuse a table with few usable rows: training on the rest is rarely what the user intended."""
    if problems.bad > most * (problems.bad + problems.rows):
        raise NpukitError(
            f"{table.name}: {problems.bad:,} of {counted(problems.bad + problems.rows, 'row')} cannot be used, such as "
            f"{problems.first[0].rstrip('.')}. Correct them, or raise data.max_bad_rows (now {most:g})."
        )


def _refuse_unusable(table: Table, problems: Problems, cutoff: int) -> None:
    if not problems.rows:
        raise NpukitError(nothing_usable(table, problems.first) if problems.bad else f"{table.name} has no rows.")
    if problems.unanswered == problems.rows:
        raise NpukitError(
            f"{table.name}: none of {counted(problems.rows, 'row')} keeps an answer to learn from within {cutoff:,} "
            "tokens: raise data.cutoff, or check that the rows have answers."
        )


def _key(table: Table, encoder: Encoder) -> str:
    """A key that changes with everything that the tokens depend on, and with nothing else."""
    data, task, template, images = encoder.data, encoder.task, encoder.template, encoder.images
    parts = {
        "code": [_digest(file) for name in CODE for file in sorted((Path(__file__).parents[1] / name).glob("*.py"))],
        "libraries": [importlib.metadata.version(name) for name in ("tokenizers", "transformers", "jinja2")],
        "files": [(str(file.absolute()), _digest(file)) for file in table.files],
        "hub": table.fingerprint() if table.hub else None,
        "table": [asdict(table.layout), table.limit, table.keep, table.archive, table.negatives],
        "options": data.model_dump(include=TOKENS_DEPEND_ON),
        "task": [task.name, task.tokens_depend_on(data)],
        "template": template.text,
        "today": date.today().isoformat() if "strftime_now" in template.text else None,
        "tokenizer": _tokenizer_content(encoder.tokenizer),
        "images": images and images.depends_on(),
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
        tokenizer.backend_tokenizer.no_padding()  # state of the last call, not part of the tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        content = tokenizer.backend_tokenizer.to_str()
    else:
        content = json.dumps([type(tokenizer).__name__, tokenizer.get_vocab()], sort_keys=True)
    return [hashlib.sha256(content.encode()).hexdigest(), json.dumps(tokenizer.special_tokens_map, sort_keys=True)]
