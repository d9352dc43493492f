"""Find the validation rows of a finished training run again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from npukit.cache import cache_folder
from npukit.llm.chat.templates import find_template
from npukit.llm.config.options import DataOptions
from npukit.llm.data.drawn import drawn
from npukit.llm.data.encode import Encoder
from npukit.llm.data.encoded import usable_rows
from npukit.llm.data.mix import split
from npukit.llm.data.problems import Problems
from npukit.llm.data.row import Conversation
from npukit.llm.data.sources import find_table
from npukit.llm.hub import Hub
from npukit.llm.tasks.task import named
from npukit.report.writing import write_text


def held_out_file(data: DataOptions, seed: int, tokenizer: Any, hub: Hub | None = None) -> Path:
    """The rows as a file of messages in npukit's cache."""
    lines = [json.dumps({"messages": row}, ensure_ascii=False) + "\n" for row in held_out(data, seed, tokenizer, hub)]
    text = "".join(lines)
    file = cache_folder() / "validation" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    return file


def held_out(data: DataOptions, seed: int, tokenizer: Any, hub: Hub | None = None) -> list[Conversation]:
    """The conversations of a run's validation rows: those that it named, or the share that its seed selected.

    `data` is the run's data section, as `npukit.llm.config.record.find_record` reads it.

    >>> held_out(record.data, record.seed, tokenizer)[0]
    [{'role': 'user', 'content': 'What is one plus one?'}, {'role': 'assistant', 'content': 'Two.'}]
    """
    sources = data.validation if isinstance(data.validation, tuple) else data.train
    encoder = Encoder(data, named("sft"), tokenizer, find_template(data.template, tokenizer, data.tokens))
    all_tables = [find_table(source, data, hub) for source in sources]
    _, apart = drawn(all_tables, data, seed if data.seed is None else data.seed)
    tables = []
    for table in apart or all_tables:
        rows = usable_rows(table, encoder, Problems())
        tables.append([row for row, _ in rows if isinstance(row, list)])
    if apart or isinstance(data.validation, tuple):
        return [row for table in tables for row in table]
    _, chosen = split([len(table) for table in tables], data.validation, seed)
    return [table[number] for table, numbers in zip(tables, chosen, strict=True) for number in numbers]
