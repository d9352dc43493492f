"""Verbs that accept the command lines of LLaMA-Factory and ms-swift, and translate them into npukit's own.

`npukit serve --adapters run --infer_backend pt` becomes `npukit serve models/qwen2 --adapter run`, which is shown.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.cli import using
from npukit.cli.help import Command
from npukit.report.terminal import printable
from npukit.report.writing import make_folder

if TYPE_CHECKING:
    from npukit.llm.config.use import Use, Verb
    from npukit.llm.reading.read_use import UseReading

FILES = (".yaml", ".yml", ".json")
# Options that are expressed differently: MODEL, its variable, and DATA. The tokenizer comes with a trained model.
OTHERWISE = {"model.path", "model.hub", "chat.tokenizer", "chat.from_run"}
ROWS = {"data.input", "data.of_run", "data.run", "data.run_seed"}


class TranslatedCommand(Command):
    """A verb whose arguments may be those of another tool."""

    verb: Verb

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--explain" in args:
            print(using.explain(self.verb, next((word for word in args if not word.startswith("-")), "")))
            ctx.exit()
        flags = {name: param for param in self.params for name in (*param.opts, *param.secondary_opts)}
        if self._is_anothers(args, flags):
            args = self._translated(args, flags)
        rest: list[str] = super().parse_args(ctx, args)
        return rest

    def _is_anothers(self, args: list[str], flags: Mapping[str, Any]) -> bool:
        """Return whether there is a file instead of a model, or an option that only another tool has."""
        if args and args[0].endswith(FILES) and not Path(args[0]).is_dir():
            return True
        known = {*flags, "--help"}
        unknown = [word for word in args if word.startswith("--") and word.partition("=")[0] not in known]
        unknown += [word for word in args if not word.startswith("-") and "=" in word]
        if not unknown:
            return False
        from npukit.llm.reading.read_use import is_anothers

        return any(is_anothers(word.lstrip("-").partition("=")[0]) for word in unknown)

    def _translated(self, args: list[str], flags: Mapping[str, Any]) -> list[str]:
        from npukit.llm.reading.read_use import is_known, read_use

        ours, theirs = _parted(args, flags, lambda name: is_known(name, self.verb))
        reading = read_use(self.verb, theirs, os.environ)
        os.environ["USE_MODELSCOPE_HUB"] = str(int(reading.use.model.hub == "modelscope"))
        if self.verb == "infer" and (output := reading.use.data.output):
            make_folder(output.parent)  # as those tools do
        unused: list[str] = []
        words = [*_words(reading.use, self.verb, flags, unused), *ours]
        self._print_reading(reading, words, [key for key in unused if key in reading.written])
        return words

    def _print_reading(self, reading: UseReading, words: list[str], unused: list[str]) -> None:
        command = shlex.join(["npukit", self.name or self.verb, *words])
        notes = [*reading.notes, *(f"{key}: npukit {self.verb} has no such option" for key in unused)]
        heading = f"npukit: read as {reading.dialect}'s: {command}"
        print(printable("\n".join([heading, *(f"  {note}" for note in notes)])), file=sys.stderr)


def _parted(args: list[str], flags: Mapping[str, Any], is_theirs: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Split the options that only this command has, such as --device, from everything else."""
    ours: list[str] = []
    theirs: list[str] = []
    remaining = list(args)
    while remaining:
        word = remaining.pop(0)
        name, equals, _ = word.partition("=")
        if name not in flags or is_theirs(name):
            theirs.append(word)
            continue
        ours.append(word)
        if not equals and not flags[name].is_flag and remaining:
            ours.append(remaining.pop(0))
    return ours, theirs


def _words(use: Use, verb: Verb, flags: Mapping[str, Any], unused: list[str]) -> Iterator[str]:
    """Return the options that are not defaults, as this command's flags."""
    from npukit.llm.config.schema import options
    from npukit.llm.config.use import USED, Use

    known = using.flags(verb)
    model, use = _model(use)
    yield model
    if verb == "infer":
        yield from _rows(use)
    for key, option in options(Use).items():
        group, _, name = key.partition(".")
        if group not in USED[verb] or key in OTHERWISE | ROWS or key.startswith("adapters.") or key.count(".") > 1:
            continue
        if verb == "export" and key in ("model.dtype", "export.merge_lora"):  # the written dtype is used; always merged
            continue
        value = getattr(getattr(use, group), name) if name else getattr(use, group)
        if value == option.field.default:
            continue
        if key not in known:
            unused.append(key)
            continue
        for item in value if isinstance(value, tuple) else (value,):
            yield from _option(known[key][0], item, flags[known[key][0]])


def _model(use: Use) -> tuple[str, Use]:
    """Return MODEL. An adapter that names its base model stands for both."""
    from npukit.llm.reading.read_use import base

    applied = [adapter for adapter in use.adapters if adapter.name is None]
    if len(applied) != 1 or base(applied[0].path) != use.model.path:
        return use.model.path, use
    kept = tuple(adapter for adapter in use.adapters if adapter.name is not None)
    return applied[0].path, use.model_copy(update={"adapters": kept})


def _option(flag: str, value: Any, param: Any) -> Iterator[str]:
    if param.is_flag:
        off = param.secondary_opts
        yield from [flag] if value else off[:1]
    else:
        path, name = getattr(value, "path", None), getattr(value, "name", None)
        text = (f"{name}={path}" if name else path) if path is not None else value
        yield from (flag, str(getattr(text, "value", text)))


def _rows(use: Use) -> Iterator[str]:
    """Return the rows to answer: those on the command line, or those of the run."""
    run = use.data.run
    if run is None:
        yield from (source.path for source in use.data.input)
    elif isinstance(run.validation, tuple):
        yield from (source.path for source in run.validation)
    else:
        from npukit.llm.data.held_out import held_out_file
        from npukit.llm.models.loading import load_tokenizer

        place = use.chat.tokenizer or use.model.path
        tokenizer = load_tokenizer(use.model, place)
        yield str(held_out_file(run, use.data.run_seed, tokenizer, use.model.hub))
