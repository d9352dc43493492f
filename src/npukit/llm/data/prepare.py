"""Turn data options into the rows that a model is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from npukit.errors import NpukitError
from npukit.llm.chat.templates import Template, find_template, missing_tokens
from npukit.llm.config.options import DataOptions
from npukit.llm.data.drawn import drawn
from npukit.llm.data.encode import Encoder
from npukit.llm.data.hub import local_folder
from npukit.llm.data.mix import mix, split
from npukit.llm.data.pack import Numbers, pack
from npukit.llm.data.problems import Problems
from npukit.llm.data.rows import Chosen, Packed
from npukit.llm.data.sources import Table, find_table
from npukit.llm.data.stream import Stream
from npukit.llm.data.tokenised import Log, Rows, tokenised
from npukit.llm.hub import Hub
from npukit.llm.images.images import Images
from npukit.llm.tasks.task import Task
from npukit.report.report import counted


@dataclass(frozen=True)
class Prepared:
    """Rows to train and to evaluate on, as dicts of input_ids and labels, and their lengths if they are packed."""

    train: Chosen | Packed | Stream
    validation: Chosen | Packed | None
    template_used: Template
    problems: Problems


def prepare(
    data: DataOptions,
    task: Task,
    tokenizer: Any,
    seed: int,
    log: Log = lambda sentence: None,
    hub: Hub | None = None,
    images: Images | None = None,
) -> Prepared:
    """Read, render, tokenise, mix and pack the data sets in `data`. The same seed gives the same rows in every process.

    >>> prepared = prepare(DataOptions(train=[{"path": "alpaca.jsonl"}]), named("sft"), tokenizer, seed=42, log=print)
    >>> prepared.train[0]["input_ids"]
    """
    data = task.data_options(data).model_copy(update={"folder": local_folder(data.folder)})
    if data.packing and data.pack_length:  # a row must fit into a pack
        data = data.model_copy(update={"cutoff": min(data.cutoff, data.pack_length)})
    encoder = Encoder(data, task, tokenizer, find_template(data.template, tokenizer, data.tokens), images)
    return _Preparation(encoder, pad_id(tokenizer), seed, log, hub).run()


@dataclass(frozen=True)
class _Preparation:
    encoder: Encoder
    pad_id: int
    seed: int
    log: Log
    hub: Hub | None
    problems: Problems = field(default_factory=Problems)

    def run(self) -> Prepared:
        self._tell_about_template()
        data = self.encoder.data
        train_tables = [find_table(source, data, self.hub) for source in data.train]
        held_out = data.validation
        validation: Chosen | Packed | None = None
        if isinstance(held_out, tuple):
            validation = self._all_rows([self._rows(find_table(source, data, self.hub)) for source in held_out])
        train: Chosen | Packed | Stream
        if data.streaming:
            train = Stream(train_tables, self.encoder, self.seed, self.pad_id, self.log)
            if not isinstance(held_out, tuple) and held_out:
                validation = self._all_rows(train.hold_out(held_out))
        else:
            train_tables, apart = drawn(train_tables, data, self.seed if data.seed is None else data.seed)
            if apart:
                validation = self._all_rows([self._rows(table) for table in apart])
            tables = [self._rows(table) for table in train_tables]
            share = 0.0 if apart or isinstance(held_out, tuple) else held_out
            chosen, validation_rows = split(list(map(len, tables)), share, self.seed)
            if share:
                validation = self._finished("validation", tables, validation_rows)
            chosen = mix(chosen, [table.weight for table in train_tables], self.seed)
            train = self._finished("training", tables, chosen)
        return Prepared(train, validation, self.encoder.template, self.problems)

    def _all_rows(self, tables: Sequence[Rows]) -> Chosen | Packed:
        return self._finished("validation", tables, [np.arange(len(rows)) for rows in tables])

    def _rows(self, table: Table) -> Rows:
        rows = tokenised(table, self.encoder, self.log)
        self.problems.add(rows.problems)
        return rows

    def _finished(self, purpose: str, tables: Sequence[Rows], chosen: Sequence[Numbers]) -> Chosen | Packed:
        numbers = np.repeat(np.arange(len(tables), dtype=np.int32), [len(rows) for rows in chosen])
        rows = Chosen(tables, numbers, np.concatenate(list(chosen)))
        data = self.encoder.data
        lengths = rows.lengths()
        tokens = f", {counted(lengths.sum(), 'token')}" if self.encoder.task.counts_tokens else ""
        contents = f"{counted(len(rows), 'row')}{tokens} for {purpose}"
        if not data.packing:
            self.log(f"{contents}.")
            return rows
        length = data.pack_length or data.cutoff
        packs = pack(lengths, length, self.seed)
        filled = lengths.sum() / (len(packs) * length)
        packed = f"{counted(len(packs), 'pack')} of {length:,}"
        self.log(f"{contents}, in {packed} ({filled:.1%} filled).")
        return Packed(rows, packs, length, self.pad_id)

    def _tell_about_template(self) -> None:
        data, template, tokenizer = self.encoder.data, self.encoder.template, self.encoder.tokenizer
        if tokenizer.eos_token_id is None:
            self.log(
                "Warning: the tokenizer has no end token, so the model does not learn where an answer ends: set "
                "eos_token in its tokenizer_config.json."
            )
        if not self.encoder.task.uses_template(data):
            return
        if data.template is None and template.name == "default":
            self.log("The tokenizer has no chat template, so the template named default is used.")
        if missing := missing_tokens(template, tokenizer):
            self.log(
                f"The tokenizer has no token {', '.join(missing)}, which the chat template {template.name} uses: "
                "it is split into several tokens, and this model was probably not trained with that template."
            )


def pad_id(tokenizer: Any) -> int:
    """The token that pads rows; it never counts."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise NpukitError("The tokenizer has neither a padding nor an end token: set one in its tokenizer_config.json.")
