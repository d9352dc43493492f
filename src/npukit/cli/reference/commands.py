"""Reference pages of the command line: every verb with its options, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.cli.help import COMMON, aligned, argument_name, choices, default, panel, parted, shown_names
from npukit.cli.reference.template import fill, row
from npukit.cli.verbs import VERBS, Verb, load
from npukit.facts.data import load_yaml


def commands_page() -> str:
    """Every verb with its arguments and options, as `--help` has them."""
    lists: list[str] = []
    commands: list[str] = []
    for title, verbs in VERBS.items():
        lists += ["", f"## {title}", ""]
        lists += [f"- [`npukit {verb.name}`](#npukit-{verb.name}): {_summary(load(verb))}" for verb in verbs]
        commands += [line for verb in verbs for line in ("", *_verb(verb))]
    return fill("commands.md", lists=lists, commands=commands)


def _verb(verb: Verb) -> Iterator[str]:
    command = load(verb)
    yield from _command(f"npukit {verb.name}", command)
    if verb.also:
        yield from ("", f"Also called {', '.join(f'`npukit {name}`' for name in verb.also)}.")
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from ("", *_command(f"npukit {verb.name} {name}", inner, level=4))


def _command(name: str, command: Any, level: int = 3) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "", _paragraphs(command.help or ""))
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and panel(param) != COMMON
    ]
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (row(f"`{argument_name(param)}`", param.help or "") for param in arguments)
    if options:
        yield from ("", "| option | meaning | default |", "|---|---|---|")
        yield from (row(_names(param), f"{param.help}{_choices(param)}", _default(param)) for param in options)


def _summary(command: Any) -> str:
    return str(command.help).partition("\n")[0]


def _paragraphs(text: str) -> str:
    """The help with the lines of its paragraphs joined, and its examples in a block."""
    text, examples = parted(text)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text.strip())]
    return "\n\n".join([*blocks, *(["\n".join(["```bash", *aligned(examples), "```"])] if examples else [])])


def _names(param: Any) -> str:
    """The names of an option; the ones in brackets are other tools'."""
    shown = shown_names(param)
    others = [name for name in param.opts if name not in shown]
    listed = ", ".join(f"`{name}`" for name in shown)
    return f"{listed} ({', '.join(f'`{name}`' for name in others)})" if others else listed


def _choices(param: Any) -> str:
    known = choices(param)
    return f" One of {', '.join(f'`{choice}`' for choice in known)}." if known else ""


def _default(param: Any) -> str:
    text = default(param)
    return f"`{text}`" if text and not isinstance(param.show_default, str) and text != "on" else text


def exit_codes_page() -> str:
    """What the codes mean, and what 0 and 1 mean for each verb."""
    data = load_yaml(Path(__file__).with_name("exit_codes.yaml"))
    verbs = (
        row(", ".join(f"`{name}`" for name in line["names"]), line["done"], line["failed"], _json(line["names"]))
        for line in data["verbs"]
    )
    return fill("exit_codes.md", codes=(row(line["code"], line["meaning"]) for line in data["codes"]), verbs=verbs)


def _json(names: list[str]) -> str:
    """Which of these verbs can print JSON."""
    verbs = {verb.name: verb for group in VERBS.values() for verb in group}
    able = [name for name in names if _prints_json(load(verbs[name]))]
    return "yes" if able == names else ", ".join(f"`{name}`" for name in able)


def _prints_json(command: Any) -> bool:
    inner = getattr(command, "commands", {}).values()
    return any("--json" in param.opts for verb in (command, *inner) for param in verb.params)
