"""Reference pages of the command line: every verb with its options, and the exit codes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npukit.cli.help import COMMON, aligned, argument_name, choices, default, panel, parted, shown_names
from npukit.cli.verbs import VERBS, Verb, load
from npukit.facts.data import load_yaml


def commands_page() -> str:
    """Every verb with its arguments and options, as `--help` has them."""
    lines = [
        "# Commands",
        "",
        "`npukit COMMAND --help` prints the same. Every command also takes `-q` (`--quiet`: results and problems only) "
        "and `-v` (`--verbose`: all that the libraries say, and the tracebacks of errors). Names in brackets are those "
        "of other tools.",
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
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and panel(param) != COMMON
    ]
    if arguments:
        yield from ("", "| argument | meaning |", "|---|---|")
        yield from (f"| `{_cell(argument_name(param))}` | {_cell(param.help)} |" for param in arguments)
    if options:
        yield from ("", "| option | meaning | default |", "|---|---|---|")
        yield from (
            f"| {_names(param)} | {_cell(param.help)}{_choices(param)} | {_default(param)} |" for param in options
        )


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
    shown = default(param)
    return f"`{shown}`" if shown and not isinstance(param.show_default, str) and shown != "on" else _cell(shown)


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def exit_codes_page() -> str:
    """What the codes mean, and what 0 and 1 mean for each verb."""
    data = load_yaml(Path(__file__).with_name("exit_codes.yaml"))
    lines = ["# Exit codes", "", data["intro"], "", "| code | meaning |", "|---:|---|"]
    lines += [f"| {row['code']} | {row['meaning']} |" for row in data["codes"]]
    lines += ["", "| command | 0 | 1 | `--json` |", "|---|---|---|---|"]
    for row in data["verbs"]:
        names = ", ".join(f"`{name}`" for name in row["names"])
        lines.append(f"| {names} | {row['done']} | {row['failed']} | {_json(row)} |")
    return "\n".join([*lines, "", data["signals"].strip(), "", "## JSON", "", data["json"].strip(), ""])


def _json(row: dict[str, Any]) -> str:
    """Which of the verbs in the row can print JSON."""
    known = {verb.name: verb for verbs in VERBS.values() for verb in verbs}
    able = [name for name in row["names"] if _prints_json(load(known[name]))]
    if len(able) == len(row["names"]):
        return "yes"
    return ", ".join(f"`{name}`" for name in able)


def _prints_json(command: Any) -> bool:
    inner = getattr(command, "commands", {}).values()
    options = {name for verb in (command, *inner) for param in verb.params for name in param.opts}
    return "--json" in options
