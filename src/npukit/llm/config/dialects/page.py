"""The keys of a dialect as Markdown tables for docs/reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from npukit.llm.config.dialects.table import DialectRow
from npukit.llm.config.schema import options, plain
from npukit.train.options import FrozenOptions


def table(rows: Mapping[str, DialectRow], schema: type[FrozenOptions]) -> Iterator[str]:
    """Return tables of the supported keys, those without effect, the rejected ones, and the former names of keys."""
    ordered = sorted(rows.items())
    yield from ("| key | here | default |", "|---|---|---|")
    for key, row in ordered:
        if row.to:
            yield f"| `{key}` | {', '.join(f'`{option}`' for option in row.to)} | {_default(row, schema)} |"
    yield from ("", "Accepted, because it has no effect here:", "", "| key | why |", "|---|---|")
    yield from (f"| `{key}` | {row.ignored} |" for key, row in ordered if row.ignored)
    yield from ("", "Rejected, if it asks for something:", "", "| key | instead |", "|---|---|")
    yield from (f"| `{key}` | {row.unsupported} |" for key, row in ordered if row.unsupported)
    if renamed := [(key, row) for key, row in ordered if row.renamed]:
        yield from ("", "Keys of earlier releases:", "", "| key | is called | since |", "|---|---|---|")
        yield from (f"| `{key}` | `{row.renamed}` | {row.since} |" for key, row in renamed)


def _default(row: DialectRow, schema: type[FrozenOptions]) -> str:
    """Return the tool's default if it is different from npukit's."""
    if "default" not in row.model_fields_set:
        return ""
    known = options(schema)
    ours = known[row.to[0]].default if row.to[0] in known else ""
    theirs = plain(row.default)
    return theirs if theirs == ours else f"{theirs} (npukit's own: {ours})"
