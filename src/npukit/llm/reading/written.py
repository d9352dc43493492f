"""What somebody wrote, whatever it configures: a file, the words of a command line, the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npukit.llm.config.dialects.table import Dialect
from npukit.llm.config.dialects.translator import Translator
from npukit.llm.config.dialects.values import Values
from npukit.llm.config.names import OptionNames
from npukit.llm.config.raw_config import COMMAND_LINE, Mistake, Origin, RawConfig
from npukit.llm.config.words import parse_words
from npukit.llm.config.yaml_file import read_yaml

Words = dict[str, tuple[Any, str]]
"""Values by key, each with the name that it was written with."""


def read_written(file: Path | None, words: Sequence[str]) -> tuple[RawConfig, Words]:
    """The file with the words without a dot, which may be another tool's, and all words."""
    raw = read_yaml(file) if file else RawConfig()
    options = parse_words(words)
    for key, (value, name) in options.items():
        if "." not in key:
            raw.set((key,), value, COMMAND_LINE, name)
    return raw, options


def translate(
    dialect: Dialect, raw: RawConfig, environ: Mapping[str, str], verb: str, names: OptionNames, ranks: int = 1
) -> tuple[RawConfig, list[Mistake], list[str]]:
    """Another tool's options as ours, mistakes in them, and notes for their author."""
    values = Values(raw.values, dialect.defaults(), environ, verb, ranks)
    translator = Translator(dialect, raw, values, names)
    translator.translate()
    return translator.ours, translator.mistakes, values.notes


def set_own(raw: RawConfig, options: Words, environ: Mapping[str, str]) -> None:
    """Words with a dot, which are always ours, and the hub that the environment names."""
    for key, (value, name) in options.items():
        if "." in key:
            raw.set(tuple(key.split(".")), value, COMMAND_LINE, name)
    if environ.get("USE_MODELSCOPE_HUB", "").lower() in ("1", "true"):
        raw.set_default(("model", "hub"), "modelscope", Origin("USE_MODELSCOPE_HUB"))
