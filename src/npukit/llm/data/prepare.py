"""From data options to the rows that a model is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npukit.errors import NpukitError
from npukit.llm.chat.templates import Template, find_template, missing_tokens
from npukit.llm.config.options import DataOptions, Source
from npukit.llm.data.drawn import drawn
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


@dataclass(frozen=True)
class Prepared:
    """Rows to train and to evaluate on, as dicts of input_ids and labels, and lengths where they are packed."""

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
    """Read, render, tokenise, mix and pack what `data` names; the same for the same seed, in every process.

    >>> prepared = prepare(DataOptions(train=[{"path": "alpaca.jsonl"}]), named("sft"), tokenizer, seed=42, log=print)
    >>> prepared.train[0]["input_ids"]
    """
    return _Preparation(data, task, tokenizer, seed, log, hub, images).run()


class _Preparation:
    def __init__(
        self,
        data: DataOptions,
        task: Task,
        tokenizer: Any,
        seed: int,
        log: Log,
        hub: Hub | None,
        images: Images | None,
    ) -> None:
        data = task.data_options(data).model_copy(update={"folder": local_folder(data.folder)})
        self._pack_length = data.pack_length or data.cutoff
        # A row must fit into a pack, so the cutoff is never longer than one.
        self._data = data.model_copy(update={"cutoff": min(data.cutoff, self._pack_length)}) if data.packing else data
        self._task = task
        self._tokenizer = tokenizer
        self._pad_id = pad_id(tokenizer)
        self._seed = seed
        self._drawing_seed = seed if data.seed is None else data.seed
        self._log = log
        self._hub = hub
        self._images = images
        self._template = find_template(data.template, tokenizer, data.tokens)
        self._problems = Problems()

    def run(self) -> Prepared:
        self._tell_about_template()
        train_tables = [find_table(source, self._data, self._hub) for source in self._data.train]
        wanted = self._data.validation
        validation = self._from_sources(wanted) if isinstance(wanted, tuple) else None
        train: Chosen | Packed | Stream
        if self._data.streaming:
            stream = Stream(
                train_tables,
                self._data,
                self._task,
                self._tokenizer,
                self._template,
                self._seed,
                self._pad_id,
                self._log,
                self._images,
            )
            if not isinstance(wanted, tuple) and wanted:
                validation = self._finished("validation", *self._all_of(stream.hold_out(wanted)))
            train = stream
        else:
            train_tables, apart = drawn(train_tables, self._data, self._drawing_seed)
            if apart:
                validation = self._finished("validation", *self._all_of([self._rows(table) for table in apart]))
            tables = [self._rows(table) for table in train_tables]
            share = 0.0 if apart or isinstance(wanted, tuple) else wanted
            chosen, held_out = split(list(map(len, tables)), share, self._seed)
            if share:
                validation = self._finished("validation", tables, held_out)
            chosen = mix(chosen, [table.weight for table in train_tables], self._seed)
            train = self._finished("training", tables, chosen)
        return Prepared(train, validation, self._template, self._problems)

    def _from_sources(self, sources: tuple[Source, ...]) -> Chosen | Packed:
        return self._finished("validation", *self._all_of([self._table_rows(source) for source in sources]))

    def _table_rows(self, source: Source) -> Rows:
        return self._rows(find_table(source, self._data, self._hub))

    @staticmethod
    def _all_of(tables: Sequence[Rows]) -> tuple[Sequence[Rows], list[Numbers]]:
        return tables, [np.arange(len(rows)) for rows in tables]

    def _rows(self, table: Table) -> Rows:
        rows = tokenised(table, self._data, self._task, self._tokenizer, self._template, self._log, self._images)
        self._problems.add(rows.problems)
        return rows

    def _finished(self, purpose: str, tables: Sequence[Rows], chosen: Sequence[Numbers]) -> Chosen | Packed:
        numbers = np.repeat(np.arange(len(tables), dtype=np.int32), [len(rows) for rows in chosen])
        rows = Chosen(tables, numbers, np.concatenate(list(chosen)))
        lengths = rows.lengths()
        tokens = f", {lengths.sum():,} tokens" if self._task.counts_tokens else ""
        counted = f"{len(rows):,} rows{tokens} for {purpose}"
        if not self._data.packing:
            self._log(f"{counted}.")
            return rows
        packs = pack(lengths, self._pack_length, self._seed)
        filled = lengths.sum() / (len(packs) * self._pack_length)
        packed = f"{len(packs):,} pack{'s' if len(packs) != 1 else ''} of {self._pack_length:,}"
        self._log(f"{counted}, in {packed} ({filled:.1%} filled).")
        return Packed(rows, packs, self._pack_length, self._pad_id)

    def _tell_about_template(self) -> None:
        if self._tokenizer.eos_token_id is None:
            self._log(
                "Warning: the tokenizer has no end token, so the model does not learn where an answer ends: set "
                "eos_token in its tokenizer_config.json."
            )
        if not self._task.uses_template(self._data):
            return
        if self._data.template is None and self._template.name == "default":
            self._log("The tokenizer has no chat template, so the template named default is used.")
        if missing := missing_tokens(self._template, self._tokenizer):
            self._log(
                f"The tokenizer has no token {', '.join(missing)}, which the chat template {self._template.name} uses: "
                "it is split into several tokens, and this model was probably not trained with that template."
            )


def pad_id(tokenizer: Any) -> int:
    """The token that fills rows up; it never counts."""
    for token in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if token is not None:
            return int(token)
    raise NpukitError("The tokenizer has neither a padding nor an end token: set one in its tokenizer_config.json.")
