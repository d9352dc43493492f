"""Find mistakes in a valid configuration: options that contradict each other, and missing files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import COMMAND_LINE, Keys, Mistake, RawConfig
from npukit.llm.config.schema import options, plain
from npukit.llm.reading.check_files import data_files, missing_packages, model_files, template, words_or_files
from npukit.llm.reading.check_media import media
from npukit.llm.reading.check_options import ConfigProblem, options_together, value_of


def mistakes_in(config: Config, raw: RawConfig, files: bool = True) -> tuple[list[Mistake], list[str]]:
    """The mistakes in `config`, each with the position of its option in `raw`, and notes about options without effect.

    Without `files`, the files in the configuration need not exist.
    """
    mistakes = [
        raw.mistake(keys, problem.text)
        for look in (CHECKS if files else CHECKS_WITHOUT_FILES)
        for problem in look(config)
        for keys in [_keys(problem.key)]
    ]
    without_effect = list(_without_effect(config, raw))
    if raw.theirs:  # other tools' files contain such options, and those tools ignore them
        return mistakes, [raw.worded(problem.text) for problem in without_effect]
    overridden = [problem for problem in without_effect if _was_overridden(problem.key, raw)]
    wrong = [problem for problem in without_effect if problem not in overridden]
    notes = [problem.text for problem in overridden]
    return mistakes + [raw.mistake(_keys(problem.key), f"{problem.text}.") for problem in wrong], notes


def _keys(key: str) -> Keys:
    return tuple(int(part) if part.isdigit() else part for part in key.split("."))


def _without_effect(config: Config, raw: RawConfig) -> Iterator[ConfigProblem]:
    """Options that were written although they have no effect with the other options."""
    for key, option in options(Config).items():
        when = option.when
        if when and value_of(config, when.key) not in when.values and raw.has(_keys(key)):
            if value_of(config, key) == option.field.default:
                continue
            chosen = f"{when.key} is {plain(value_of(config, when.key))}"
            yield ConfigProblem(key, f"{raw.name(_keys(key))} has no effect because {chosen}")


def _was_overridden(key: str, raw: RawConfig) -> bool:
    """Whether the file is consistent, and the command line selected something that does not use the option."""
    when = options(Config)[key].when
    assert when is not None
    return raw.place(_keys(when.key)) == COMMAND_LINE != raw.place(_keys(key))


CHECKS: tuple[Callable[[Config], Iterator[ConfigProblem]], ...] = (
    options_together,
    media,
    model_files,
    data_files,
    template,
    words_or_files,
    missing_packages,
)
CHECKS_WITHOUT_FILES = (options_together, media, template)
