"""The sizes of well-known models, by their names on hubs."""

from __future__ import annotations

import functools
import re
from typing import Any

from npukit.facts.data import load_yaml

KEYS = {
    "type": "model_type",
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv": "num_key_value_heads",
    "head": "head_dim",
    "vocabulary": "vocab_size",
    "tied": "tie_word_embeddings",
    "experts": "num_experts",
    "taken": "num_experts_per_tok",
    "expert": "moe_intermediate_size",
    "shared": "shared_expert_intermediate_size",
}


def known_models() -> list[dict[str, Any]]:
    """Every row of the data: sizes under the short names of its head."""
    rows: list[dict[str, Any]] = load_yaml("models.yaml")
    return rows


def known_model(name: str) -> dict[str, Any] | None:
    """What config.json says about the sizes of a model with this name on a hub; None where it is not known.

    >>> known_model("Qwen/Qwen2-7B-Instruct")["hidden_size"]
    3584
    """
    wanted = re.sub(r"[-_ ]", "", name.rpartition("/")[2].lower().removeprefix("meta-"))
    row = next((row for row in known_models() if re.match(_pattern(row["name"]), wanted)), None)
    return {KEYS[key]: value for key, value in row.items() if key in KEYS} if row else None


@functools.cache
def _pattern(name: str) -> str:
    """A name as people write it, with and without hyphens; a digit or "x" behind it makes it another model."""
    return re.escape(re.sub(r"[-_ ]", "", name.lower().removeprefix("meta-"))) + r"(?![\d.x])"
