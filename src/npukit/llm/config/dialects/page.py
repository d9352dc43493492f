"""The tables of docs/switching.md, from their data: `python -m npukit.llm.config.dialects.page docs/switching.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel

from npukit.llm.config.dialects.table import Row, load
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.dialects.use import llama_factory, swift
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options, plain
from npukit.llm.config.use import Use

MARKED = re.compile(r"(<!-- table: (?P<name>[\w -]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def updated(page: str) -> str:
    """The page with its tables as the data has them now."""
    tables = {dialect.name: "\n".join(table(dialect.rows, Config)) for dialect in DIALECTS}
    tables["use LLaMA-Factory"] = "\n".join(table(load(llama_factory.TABLE), Use))
    tables["use ms-swift"] = "\n".join(table(load(swift.TABLE), Use))
    return MARKED.sub(lambda found: f"{found[1]}{tables[found['name']]}\n{found[3]}", page)


def table(rows: Mapping[str, Row], schema: type[BaseModel]) -> Iterator[str]:
    """What can be written, what has no effect, and what is rejected."""
    ordered = sorted(rows.items())
    yield from ("| key | here | default |", "|---|---|---|")
    for key, row in ordered:
        if row.to:
            yield f"| `{key}` | {', '.join(f'`{option}`' for option in row.to)} | {_default(row, schema)} |"
    yield from ("", "Accepted, because it has no effect here:", "", "| key | why |", "|---|---|")
    yield from (f"| `{key}` | {row.ignored} |" for key, row in ordered if row.ignored)
    yield from ("", "Rejected, if it asks for something:", "", "| key | instead |", "|---|---|")
    yield from (f"| `{key}` | {row.unsupported} |" for key, row in ordered if row.unsupported)


def _default(row: Row, schema: type[BaseModel]) -> str:
    """Theirs, where it differs from ours."""
    if "default" not in row.model_fields_set:
        return ""
    known = options(schema)
    ours = known[row.to[0]].default if row.to[0] in known else ""
    theirs = plain(row.default)
    return theirs if theirs == ours else f"{theirs} (npukit's own: {ours})"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(updated(file.read_text(encoding="utf-8")), encoding="utf-8")
