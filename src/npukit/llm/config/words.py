"""Parses a command line: `--key value` and `key=value`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

from npukit.llm.config.raw_config import COMMAND_LINE, Mistake, Mistakes
from npukit.llm.config.yaml_file import Loader, plain, short

ASSIGNMENT = re.compile(r"[A-Za-z_][\w.]*=")


def parse_words(words: Sequence[str]) -> dict[str, tuple[Any, str]]:
    """Return the values of a command line by key, and how each was written.

    >>> parse_words(["--lora_rank", "8", "training.epochs=2", "--dataset", "a.json", "b.json", "--packing"])
    {'lora_rank': (8, '--lora_rank'), 'training.epochs': (2, 'training.epochs'),
     'dataset': (['a.json', 'b.json'], '--dataset'), 'packing': (True, '--packing')}
    """
    options: dict[str, tuple[Any, str]] = {}
    wrong: list[Mistake] = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            while not equals and remaining and not _starts_option(remaining[0], after=values):
                values.append(remaining.pop(0))
            parsed = [_scalar(text) for text in values]
            options[name.replace("-", "_")] = (parsed[0] if len(parsed) == 1 else parsed or True, f"--{name}")
        elif ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            options[name] = (_scalar(value), name)
        else:
            wrong.append(Mistake(COMMAND_LINE, f"{short(word)} is neither --key value nor key=value."))
    if wrong:
        raise Mistakes(wrong)
    return options


def _starts_option(word: str, after: list[str]) -> bool:
    """Return whether a word starts another option. `--adapters a=x b=y` is one option with two values."""
    if word.startswith("--") or not after or not ASSIGNMENT.match(word):
        return word.startswith("--")
    return not ASSIGNMENT.match(after[-1]) or "." in word.partition("=")[0]


def _scalar(text: str) -> Any:
    """Read a value as YAML. Text that only looks like YAML stays text."""
    try:
        value = yaml.load(text, Loader)
    except yaml.YAMLError:
        return text
    if isinstance(value, dict | list):
        return value if text.lstrip().startswith(("{", "[")) else text  # a system message may be "a: b"
    if value is None:
        return None if text in ("null", "~", "None") else text
    return text if isinstance(value, str) else plain(value, text)
