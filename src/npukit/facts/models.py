"""The sizes of well-known models by their names on hubs, so that planning needs no download.

models.csv has the keys of their public config.json files, read 2026-11. max_position_embeddings is the chat model's as
it is generally known, and was not read from the files.
"""

from __future__ import annotations

import csv
import functools
import json
import re
from pathlib import Path
from typing import Any


@functools.cache
def known_models() -> list[dict[str, Any]]:
    """Every known model: its name, and the sizes in its config.json."""
    with Path(__file__).with_name("models.csv").open(encoding="utf-8", newline="") as file:
        return [
            {key: text if key in ("name", "model_type") else json.loads(text) for key, text in row.items() if text}
            for row in csv.DictReader(file)
        ]


def known_model(name: str) -> dict[str, Any] | None:
    """The sizes in the config.json of a model with this name on a hub; None if it is not known.

    A row also matches names that extend its own, with or without hyphens and "Meta-": Qwen2-7B includes
    Qwen2-7B-Instruct, and Llama-3-8B includes llama3-8b.

    >>> known_model("Qwen/Qwen2-7B-Instruct")["hidden_size"]
    3584
    """
    short = _without_hyphens(name.rpartition("/")[2])
    model = next((model for model in known_models() if re.match(_pattern(model["name"]), short)), None)
    return {key: value for key, value in model.items() if key != "name"} if model else None


@functools.cache
def _pattern(name: str) -> str:
    """A pattern for names of the same model. A following digit or "x" would make it another model."""
    return re.escape(_without_hyphens(name)) + r"(?![\d.x])"


def _without_hyphens(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower().removeprefix("meta-"))
