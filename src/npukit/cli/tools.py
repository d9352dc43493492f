"""Verbs as tools for agents. Their declarations define the parameters, and --json the result.

A tool runs its verb as a separate process, `npukit VERB … --json`. Unless the user allows it, a tool neither writes
files nor runs a project's code. No value may name a file outside the folders that are open to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from npukit.cli.help import COMMON, OUTPUT, choices, inner_type, long_name, meaning, panel, parted
from npukit.cli.plan import names_script
from npukit.cli.verbs import VERBS, load
from npukit.errors import NpukitError

NUMBERS = {int: "integer", float: "number"}
Given = Mapping[str, Any]


@dataclass(frozen=True)
class Exposed:
    """The parts of a verb that agents may use."""

    writes: tuple[str, ...] = ()  # parameters that write files, besides those of its group Output
    runs: tuple[str, ...] = ()  # parameters with which it runs a project's code
    runs_code: Callable[[Given], bool] = lambda given: False  # whether it runs a project's code with these values
    only_runs: bool = False  # it is of no use unless running code is allowed
    when_reading: tuple[str, ...] = ()  # options that are always set if writing is not allowed


EXPOSED = {
    "doctor": Exposed(),
    "devices": Exposed(runs=("watch",)),  # it never ends
    "analyze": Exposed(writes=("update_baseline",)),
    "migrate": Exposed(writes=("in_place", "undo", "allow_dirty"), runs=("test",), when_reading=("--diff",)),
    "verify": Exposed(only_runs=True),
    "plan": Exposed(runs=("walk", "auto"), runs_code=lambda given: names_script(given.get("words") or [])),
    "explain": Exposed(),
    "docs": Exposed(),
}


@dataclass(frozen=True)
class Tools:
    """The tools of an agent, with the folders and permissions that the user gave at the start."""

    folders: tuple[Path, ...]
    allow_write: bool = False
    allow_run: bool = False
    commands: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every = {verb.name: verb for group in VERBS.values() for verb in group}
        for name, exposed in EXPOSED.items():
            if self.allow_run or not exposed.only_runs:
                self.commands[name] = load(every[name])

    def params(self, name: str) -> list[Any]:
        """Return the parameters of a verb that an agent may set."""
        return [param for param in self.commands[name].params if self._is_open(name, param)]

    def _is_open(self, name: str, param: Any) -> bool:
        exposed = EXPOSED[name]
        if panel(param) == COMMON or param.name in ("json", "format") or getattr(param, "hidden", False):
            return False
        writes = param.name in exposed.writes or (panel(param) == OUTPUT and param.param_type_name == "option")
        fixed = {option.lstrip("-") for option in exposed.when_reading}
        if not self.allow_write and (writes or param.name in fixed):
            return False
        return self.allow_run or param.name not in exposed.runs

    def description(self, name: str) -> str:
        """Return the verb's help without its examples, which are command lines."""
        text, _ = parted(self.commands[name].help or "")
        return " ".join(text.split())

    def schema(self, name: str) -> dict[str, Any]:
        """Return the verb's parameters as JSON Schema."""
        params = self.params(name)
        return {
            "type": "object",
            "properties": {str(param.name): _schema(param) for param in params},
            "required": [str(param.name) for param in params if param.required],
            "additionalProperties": False,
        }

    def command(self, name: str, values: Given) -> list[str]:
        """Return the command line of a call, or refuse it.

        >>> Tools((Path.cwd(),)).command("analyze", {"paths": ["src"]})
        ['analyze', '--json', '--', 'src']
        """
        if name not in self.commands:
            raise NpukitError(f"There is no tool {name}: choose from {', '.join(self.commands)}.")
        params = {str(param.name): param for param in self.params(name)}
        if wrong := best_match(Draft202012Validator(self.schema(name)).iter_errors(dict(values))):
            raise NpukitError(f"{name}: {wrong.message}. It takes {', '.join(params)}.")
        if not self.allow_run and EXPOSED[name].runs_code(values):
            raise NpukitError("This runs a script: start the server with --allow-run to allow it.")
        options: list[str] = [name, *(() if self.allow_write else EXPOSED[name].when_reading), "--json"]
        arguments: list[str] = []
        for key, param in params.items():
            for value in _listed(values.get(key)):
                if param.param_type_name == "argument":
                    arguments.append(self._checked(value, param))
                elif param.is_flag:
                    options += [long_name(param)] if value else []
                else:
                    options.append(f"{long_name(param)}={self._checked(value, param)}")
        return [*options, "--", *arguments]

    def _checked(self, value: Any, param: Any) -> str:
        """Return the value as a word. Refuse names of files outside the open folders."""
        text = str(value)
        parts = [text] if " " in text else [text, *re.split(r"[=,\[\]]", text)]  # such as data.train=[a.jsonl,b.jsonl]
        for part in parts:
            if self._is_outside(part, must_be_inside=inner_type(param) is Path):
                folders = ", ".join(map(str, self.folders))
                raise NpukitError(f"{part} is outside the folders that this server may read: {folders}.")
        return text

    def _is_outside(self, text: str, must_be_inside: bool) -> bool:
        try:
            path = (self.folders[0] / Path(text).expanduser()).resolve()
            if any(path.is_relative_to(folder) for folder in self.folders):
                return False
            return path.exists() or (must_be_inside and ("/" in text or text.startswith("~")))
        except (OSError, RuntimeError, ValueError):  # a pasted message is not a path
            return False


def _schema(param: Any) -> dict[str, Any]:
    if param.param_type_name == "option" and param.is_flag:
        kind: dict[str, Any] = {"type": "boolean"}
    elif known := choices(param):
        kind = {"type": "string", "enum": known}
    else:
        kind = {"type": NUMBERS.get(inner_type(param), "string")}
    if param.nargs == -1 or getattr(param, "multiple", False):
        kind = {"type": "array", "items": kind}
    text = meaning(param) if param.help else str(param.metavar or "")
    return {**kind, "description": text} if text else kind


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]
