"""The tables of docs/switching.md, from their data: `python -m npukit.llm.config.dialects.page docs/switching.md`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from npukit.llm.config.dialects.table import Dialect, Row
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options, plain

MARKED = re.compile(r"(<!-- table: (?P<name>[\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def written_anew(page: str) -> str:
    """The page with its tables as the data has them now."""
    tables = {dialect.name: "\n".join(table(dialect)) for dialect in DIALECTS}
    return MARKED.sub(lambda found: f"{found[1]}{tables[found['name']]}\n{found[3]}", page)


def table(dialect: Dialect) -> Iterator[str]:
    """What can be written, what changes nothing, and what is refused."""
    rows = sorted(dialect.rows.items())
    yield from ("| key | here | default |", "|---|---|---|")
    for key, row in rows:
        if row.to:
            yield f"| `{key}` | {', '.join(f'`{option}`' for option in row.to)} | {_default(row)} |"
    yield from ("", "Accepted, because they make no difference here:", "", "| key | why |", "|---|---|")
    yield from (f"| `{key}` | {row.ignored} |" for key, row in rows if row.ignored)
    yield from ("", "Refused, with an explanation, if they ask for something:", "", "| key | instead |", "|---|---|")
    yield from (f"| `{key}` | {row.unsupported} |" for key, row in rows if row.unsupported)


def _default(row: Row) -> str:
    """Theirs, where it is not ours."""
    if "default" not in row.model_fields_set:
        return ""
    ours = options(Config)[row.to[0]].default if row.to[0] in options(Config) else ""
    theirs = plain(row.default)
    return theirs if theirs == ours else f"{theirs} (npukit's own: {ours})"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(written_anew(file.read_text(encoding="utf-8")), encoding="utf-8")
