"""Other tools' names for npukit's options."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from npukit.facts.data import load_yaml
from npukit.llm.config.dialects.table import DialectRow, row_of
from npukit.llm.config.nearest import nearest


@dataclass(frozen=True)
class OptionNames:
    """Other tools' names for the options of one configuration, and the command that lists npukit's."""

    tables: Mapping[str, Mapping[str, DialectRow]]  # by tool
    listing: str

    def suggestion(self, word: str, above: str, siblings: Collection[str], known: Collection[str]) -> str:
        """Return the end of a message about an unknown option: what was probably meant, or where to look.

        >>> names.suggestion("lr", "training", ["epochs", "learning_rate"], options(Config))
        ': did you mean learning_rate?'
        """
        if near := nearest(word, siblings, cutoff=0.75):
            return f": did you mean {near}?"
        ends = {key.rsplit(".", 1)[-1]: key for key in known if key.count(".") < 2}
        if key := ends.get(word):
            return f": it belongs under {key.rsplit('.', 1)[0]}, as {key}."
        if usual := [key for key in usual_names().get(word, ()) if key in known]:
            nearby = [key.rsplit(".", 1)[-1] for key in usual if key.rsplit(".", 1)[0] == above]
            return f": did you mean {(nearby or usual)[0]}?"
        if theirs := self.translated(word):
            return f": {theirs}."
        if near := nearest(word, siblings) or ends.get(nearest(word, ends) or ""):
            return f": did you mean {near}?"
        return f": `{self.listing}` lists all options."

    def translated(self, key: str) -> str | None:
        """Return which tool has this key, and npukit's name for it."""
        for tool, table in self.tables.items():
            row = row_of(key, table)
            if row and row.to:
                return f"it is {tool}'s name of {row.to[0]}"
            if row:
                return f"it is {tool}'s, and {row.ignored or row.unsupported}"
        return None


@functools.cache
def usual_names() -> dict[str, tuple[str, ...]]:
    """Return common names in other tools, and the options that they may mean."""
    rows = load_yaml(Path(__file__).with_name("names.yaml"))
    options: dict[str, tuple[str, ...]] = {}
    for option, names in rows.items():
        for name in names:
            options[name] = (*options.get(name, ()), option)
    return options
