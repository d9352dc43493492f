"""Reference pages of the training configuration: npukit's own options, LLaMA-Factory's keys and ms-swift's flags."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from npukit.cli.reference.template import fill, row
from npukit.llm.config.dialects import page as dialects
from npukit.llm.config.dialects.table import load
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.dialects.use import llama_factory, swift
from npukit.llm.config.options import Config
from npukit.llm.config.schema import Option, options
from npukit.llm.config.use import Use


def configuration_page() -> str:
    """Every option of `npukit train` by group."""
    groups = groupby(
        options(Config).values(), key=lambda option: option.key.partition(".")[0] if "." in option.key else ""
    )
    tables = (
        fill("option_group.md", title=group or "The file", options=map(_option, members)) for group, members in groups
    )
    return fill("configuration.md", groups="".join(tables))


def _option(option: Option) -> str:
    return row(f"`{option.key}`", option.type, f"`{option.default}`" if option.default else "", option.meaning)


def llama_factory_page() -> str:
    """Every key of LLaMA-Factory."""
    return _dialect_page("LLaMA-Factory", "key", "from-llama-factory", llama_factory.TABLE)


def ms_swift_page() -> str:
    """Every flag of ms-swift."""
    return _dialect_page("ms-swift", "flag", "from-ms-swift", swift.TABLE)


def _dialect_page(tool: str, word: str, guide: str, use: str) -> str:
    dialect, *others = [candidate for candidate in DIALECTS if candidate.name.split()[0] == tool]
    training = [
        *_escaped(dialects.table(dialect.rows, Config)),
        *(line for other in others for line in ("", f"## {other.name}", "", *dialects.table(other.rows, Config))),
    ]
    using = _escaped(dialects.table(load(use), Use))
    return fill("dialect.md", tool=tool, word=word, guide=guide, training=training, use=using)


def _escaped(rows: Iterator[str]) -> Iterator[str]:
    """Tables with angle brackets that Markdown would take for HTML shown as text."""
    return (row.replace("<", "&lt;") if "`" not in row else row for row in rows)
