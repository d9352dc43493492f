"""Read a configuration: a YAML file, key=value words and flags, in npukit's own terms or another tool's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npukit.llm import tasks
from npukit.llm.config.dialects.table import Dialect
from npukit.llm.config.dialects.training import DIALECTS
from npukit.llm.config.dialects.training.swift import SWIFT
from npukit.llm.config.dialects.translator import recognise
from npukit.llm.config.names import OptionNames
from npukit.llm.config.options import Config
from npukit.llm.config.raw_config import COMMAND_LINE, Mistake, Mistakes, RawConfig
from npukit.llm.config.validation import validate
from npukit.llm.config.wording import worded
from npukit.llm.config.words import parse_words
from npukit.llm.config.yaml_file import read_yaml
from npukit.llm.reading.check import mistakes_in
from npukit.llm.reading.written import read_written, set_own, translate

NAMES = OptionNames({dialect.name: dialect.rows for dialect in DIALECTS}, "npukit train --explain")


@dataclass(frozen=True)
class Reading:
    """A configuration, and notes for its author on how it was understood."""

    config: Config
    notes: list[str]
    raw: RawConfig
    dialect: str = "npukit"

    def check_card(self, card: str, has_bf16: bool) -> None:
        """Report bf16 on a card without it as a mistake."""
        if self.config.training.precision == "bf16" and not has_bf16:
            keys = ("training", "precision")
            text = f"{self.raw.name(keys)}: a {card} cannot compute in bf16: use fp16, or auto."
            raise Mistakes([self.raw.mistake(keys, text)])


def read(
    file: Path | None,
    words: Sequence[str],
    environ: Mapping[str, str],
    verb: str = "train",
    ranks: int = 1,
    files: bool = True,
) -> Reading:
    """The configuration from a file and the words of a command line; `ranks` are those of the whole job.

    Without `files`, its model and data need not exist, because a plan can be made on another machine.

    >>> read(Path("sft.yaml"), ["training.epochs=2"], os.environ).config.training.epochs
    2.0
    """
    raw, options = read_written(file, words)
    flags = verb != "train" and any("." not in key for key in options)
    dialect = _dialect(raw, flags, verb)
    mistakes: list[Mistake] = []
    notes: list[str] = []
    if dialect:
        task = verb if verb in ("pt", "rlhf") else "sft"
        raw, mistakes, notes = translate(dialect, raw, environ, task, NAMES, ranks)
    set_own(raw, options, environ)
    mistakes += _same_task(raw, verb)
    config, wrong = validate(raw, Config, NAMES)
    mistakes += wrong
    if config:
        wrong, more = mistakes_in(config, raw, files)
        mistakes += wrong
        notes += more
    name = dialect.name if dialect else "npukit"
    if mistakes or config is None:
        raise Mistakes([replace(mistake, text=worded(mistake.text, raw.theirs)) for mistake in mistakes])
    return Reading(config, notes, raw, name)


def predicts(file: Path | None, words: Sequence[str]) -> bool:
    """Whether LLaMA-Factory is asked for predictions instead of training: do_predict without do_train."""
    raw = read_yaml(file).values if file else {}
    raw |= {key: value for key, (value, _) in parse_words(words).items()}
    return raw.get("do_predict") is True and raw.get("do_train") is not True


def _dialect(raw: RawConfig, flags: bool, verb: str) -> Dialect | None:
    """The tool whose terms these are; None for npukit's. Flags without a dot can only be another tool's."""
    if any(_is_group(key, value) for key, value in raw.values.items()):
        return None
    # In case of a tie, flags are ms-swift's, and a file is LLaMA-Factory's.
    order = sorted(DIALECTS, key=lambda dialect: dialect is not SWIFT) if flags else DIALECTS
    if verb == "rlhf":
        return SWIFT  # LLaMA-Factory has no such verb
    return recognise(raw.values, order) or (SWIFT if flags else None)


def _is_group(key: str, value: object) -> bool:
    """Whether this is, or was meant as, a group of npukit's options: in YAML, `path:models/x` is a single word."""
    if key not in Config.model_fields:
        return False
    name, colon, _ = str(value).partition(":")
    is_word = bool(colon) and name in getattr(Config.model_fields[key].annotation, "model_fields", {})
    return is_word or isinstance(value, dict)


def _same_task(raw: RawConfig, verb: str) -> list[Mistake]:
    """`npukit sft` and `npukit pt` imply the task, and the file must not contradict it."""
    if verb in ("train", "rlhf"):
        return []
    written = raw.values.get("task")
    task = tasks.known().get(str(written))
    if task and task.verb == verb:  # ms-swift's sft trains classifiers, embeddings and rerankers, too
        return []
    if task and raw.has(("task",)):
        name = raw.name(("task",))
        return [raw.mistake(("task",), f"{name} is {written}, but the command is npukit {verb}.")]
    raw.set(("task",), verb, COMMAND_LINE)
    return []
