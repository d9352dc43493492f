"""Read a configuration: a YAML file, key=value words and flags, in our own words or another tool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.llm.config import Config
from npukit.llm.given import Given, Mistakes, parse_words, read_yaml
from npukit.llm.validation import validate


@dataclass(frozen=True)
class Reading:
    """A configuration, and what its author should know about how it was understood."""

    config: Config
    notes: list[str]
    given: Given


def read(file: Path | None, words: Sequence[str], environ: Mapping[str, str]) -> Reading:
    """The configuration that a file and the words of a command line make.

    >>> read(Path("sft.yaml"), ["training.epochs=2"], os.environ).config.training.epochs
    2.0
    """
    given = read_yaml(file) if file else Given()
    for key, (value, place) in parse_words(words).items():
        given.set(tuple(key.split(".")), value, "command line", place)
    if environ.get("USE_MODELSCOPE_HUB", "").lower() in ("1", "true"):
        given.set_default(("model", "hub"), "modelscope", "USE_MODELSCOPE_HUB")
    config, mistakes = validate(given)
    if mistakes or config is None:
        raise Mistakes(mistakes)
    return Reading(config, [], given)
