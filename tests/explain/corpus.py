"""Messages that people met, from corpus.yaml, and what `npukit explain` says of them first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from npukit.explain import explain


@dataclass(frozen=True)
class Answer:
    """What was asked, what should come first, and what does."""

    source: str
    log: str
    wanted: str
    given: str


def answers() -> list[Answer]:
    """Ask about every message."""
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return [
        Answer(
            row["from"], row["log"], row["first"], next((explanation.code for explanation in explain(row["log"])), "")
        )
        for row in rows
    ]
