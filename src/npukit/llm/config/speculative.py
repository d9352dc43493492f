"""Translates vLLM's `speculative_config`, a JSON object, into npukit's own options."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

# These have no effect: the draft model is on the same device, and lookups always match three tokens.
IGNORED = {"draft_tensor_parallel_size", "prompt_lookup_max", "prompt_lookup_min"}
HIGHEST = 64  # the maximum number of tokens that are guessed at once


def read_json(value: Any) -> Any:
    """Return the object. Raise ValueError if it is not one."""
    with contextlib.suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping | None):
        raise ValueError('it must be a JSON object such as {"method": "mtp", "num_speculative_tokens": 1}')
    return value


def options_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return npukit's options. Raise ValueError if npukit has no such option.

    >>> options_of({"method": "mtp", "num_speculative_tokens": 1})
    {'speculative_method': 'mtp', 'num_speculative_tokens': 1}
    """
    if others := sorted(set(config) - IGNORED - {"method", "model", "num_speculative_tokens"}):
        raise ValueError(f"npukit has no {others[0]}: leave it out, or use --engine vllm")
    tokens, model = config.get("num_speculative_tokens"), config.get("model")
    if tokens is not None and not (type(tokens) is int and 1 <= tokens <= HIGHEST):
        raise ValueError(f"num_speculative_tokens must be a whole number from 1 to {HIGHEST}")
    method = config.get("method") or ("draft_model" if model else None)
    count = {} if tokens is None else {"num_speculative_tokens": tokens}
    if method == "draft_model" and isinstance(model, str):
        return {"speculative_model": model, **count}
    if method == "ngram" and tokens:
        return {"prompt_lookup": tokens}
    if isinstance(method, str) and method.split("_")[-1] == "mtp" and not model:
        return {"speculative_method": "mtp", **count}
    raise ValueError(
        "npukit guesses tokens with method mtp, with ngram and num_speculative_tokens, or with a model: choose one of "
        "them, or use --engine vllm"
    )
