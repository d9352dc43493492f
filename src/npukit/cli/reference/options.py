"""Reference pages of the training configuration: npukit's own options, LLaMA-Factory's keys and ms-swift's flags."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from npukit.llm.config.dialects import page as dialects
from npukit.llm.config.dialects.table import load
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.dialects.use import llama_factory, swift
from npukit.llm.config.options import Config
from npukit.llm.config.schema import options
from npukit.llm.config.use import Use


def configuration_page() -> str:
    """Every option of `npukit train` by group."""
    lines = [
        "# Configuration of a training",
        "",
        "Options of the YAML file for `npukit train`. On the command line they are `key=value` words or flags: "
        "`training.learning_rate=1e-5`, `--training.learning_rate 1e-5`. `npukit train --explain WORD` prints those "
        "that match a word.",
    ]
    known = options(Config).values()
    for group, members in groupby(known, key=lambda option: option.key.partition(".")[0] if "." in option.key else ""):
        lines += ["", f"## {group or 'The file'}", "", "| option | type | default | meaning |", "|---|---|---|---|"]
        for option in members:
            default = f"`{option.default}`" if option.default else ""
            lines.append(f"| `{option.key}` | {_cell(option.type)} | {_cell(default)} | {_cell(option.meaning)} |")
    return "\n".join(lines) + "\n"


def llama_factory_page() -> str:
    """Every key of LLaMA-Factory."""
    return _dialect_page("LLaMA-Factory", "key", "from-llama-factory", llama_factory.TABLE)


def ms_swift_page() -> str:
    """Every flag of ms-swift."""
    return _dialect_page("ms-swift", "flag", "from-ms-swift", swift.TABLE)


def _dialect_page(name: str, word: str, guide: str, use: str) -> str:
    dialect, *others = [candidate for candidate in DIALECTS if candidate.name.split()[0] == name]
    lines = [
        f"# {name}'s {word}s",
        "",
        f"What each {word} becomes in npukit; see [the guide](../guides/{guide}.md). A default is shown where it "
        "differs from npukit's own.",
        "",
        "## Training",
        "",
        *_escaped(dialects.table(dialect.rows, Config)),
        *(line for other in others for line in ("", f"## {other.name}", "", *dialects.table(other.rows, Config))),
        "",
        "## Chat, inference, serving and export",
        "",
        *_escaped(dialects.table(load(use), Use)),
    ]
    return "\n".join(lines) + "\n"


def _escaped(rows: Iterator[str]) -> Iterator[str]:
    """Tables with angle brackets that Markdown would take for HTML shown as text."""
    return (row.replace("<", "&lt;") if "`" not in row else row for row in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
