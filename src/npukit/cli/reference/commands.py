"""Reference pages of the command line: every verb with its options, and the exit codes."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from npukit.cli.verbs import VERBS, Verb, load


def commands_page() -> str:
    """Every verb with its arguments and options, as `--help` has them."""
    lines = [
        "# Commands",
        "",
        "`npukit COMMAND --help` prints the same. `-q` and `-v` before the command show less or more.",
    ]
    for title, verbs in VERBS.items():
        lines += ["", f"## {title}", ""]
        lines += [f"- [`npukit {verb.name}`](#npukit-{verb.name}): {_summary(load(verb))}" for verb in verbs]
    for verbs in VERBS.values():
        for verb in verbs:
            lines += ["", *_verb(verb)]
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> Iterator[str]:
    command = load(verb)
    yield from _command(f"npukit {verb.name}", command)
    if verb.also:
        yield from ("", f"Also called {', '.join(f'`npukit {name}`' for name in verb.also)}.")
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        yield from ("", *_command(f"npukit {verb.name} {name}", inner, level=4))


def _command(name: str, command: Any, level: int = 3) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield ""
    yield _paragraphs(command.help or "")
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    options = [param for param in command.params if param.param_type_name == "option" and "--help" not in param.opts]
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| `{param.name.upper()}` | {_cell(param.help)} |" for param in arguments)
    if options:
        yield from ("", "| option | meaning | default |", "|---|---|---|")
        yield from (
            f"| {_names(param)} | {_cell(param.help)}{_choices(param)} | {_default(param)} |" for param in options
        )


def _summary(command: Any) -> str:
    return str(command.help).partition("\n")[0]


def _paragraphs(text: str) -> str:
    """The help with its lines joined, except in blocks that click keeps as they are."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.replace("\f", "").strip()):
        if block.startswith("\b"):
            blocks.append("\n".join(["```text", *block.splitlines()[1:], "```"]))
        else:
            blocks.append(" ".join(block.split()))
    return "\n\n".join(blocks)


def _names(param: Any) -> str:
    return ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])


def _choices(param: Any) -> str:
    choices = _choices_of(param)
    return f" One of {', '.join(f'`{choice}`' for choice in choices)}." if choices else ""


def _choices_of(param: Any) -> list[str]:
    """The values that an option of an enumeration or a Literal takes."""
    annotation = param.type_descriptor.annotation
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return [str(each.value) for each in annotation]
    return [str(each) for each in get_args(annotation)] if get_origin(annotation) is Literal else []


def _default(param: Any) -> str:
    if isinstance(param.show_default, str):
        return _cell(param.show_default)
    value = getattr(param.default, "value", param.default)
    if value is None or callable(value) or value is False or str(value) in ("", "()", "[]") or "UNSET" in str(value):
        return ""
    return "on" if value is True else f"`{value}`"


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def exit_codes_page() -> str:
    """What the codes mean, and what 0 and 1 mean for each verb."""
    import yaml

    data = yaml.safe_load(Path(__file__).with_name("exit_codes.yaml").read_text(encoding="utf-8"))
    lines = ["# Exit codes", "", data["intro"], "", "| code | meaning |", "|---:|---|"]
    lines += [f"| {row['code']} | {row['meaning']} |" for row in data["codes"]]
    lines += ["", "| command | 0 | 1 | `--json` |", "|---|---|---|---|"]
    for row in data["verbs"]:
        names = ", ".join(f"`{name}`" for name in row["names"])
        lines.append(f"| {names} | {row['done']} | {row['failed']} | {_json(row)} |")
    return "\n".join([*lines, "", data["signals"].strip(), ""])


def _json(row: dict[str, Any]) -> str:
    """Which of the verbs in the row can print JSON."""
    known = {verb.name: verb for verbs in VERBS.values() for verb in verbs}
    able = [name for name in row["names"] if _prints_json(load(known[name]))]
    if len(able) == len(row["names"]):
        return "yes"
    return ", ".join(f"`{name}`" for name in able)


def _prints_json(command: Any) -> bool:
    inner = getattr(command, "commands", {}).values()
    options = {name for each in (command, *inner) for param in each.params for name in param.opts}
    formats = [value for param in command.params if "--format" in param.opts for value in _choices_of(param)]
    return "--json" in options or "json" in formats
