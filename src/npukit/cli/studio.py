"""npukit studio"""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from npukit.cli.using import with_options
from npukit.cli.verbs import VERBS

Folder = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[FOLDER]...",
        show_default="the current folder",
        help="Folder to work in; further folders with models or data.",
    ),
]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 picks a free one.")]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, start and change nothing.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        show_default=False,
        help="Further name under which browsers reach it, such as a proxy's. Repeatable.",
    ),
]
PATHS = ("model", "data", "adapter", "words", "profiles")  # text that names a file, or something on a hub
# What the studio sets itself: how its own server reaches the model's.
SET_BY_STUDIO = ("host", "port", "api_key", "no_key", "cors", "ssl_keyfile", "ssl_certfile")
NOT_IN_FORMS = ("explain", "context", "json", "dry_run", *SET_BY_STUDIO)
WITHOUT_RESULT = ("serve",)  # it ends when somebody unloads the model
# Verbs that have a form of their own in the studio, and the option that writes a page.
FORMS = {
    "export": "",
    "eval": "",
    "infer": "",
    "serve": "",
    "precision capture": "",
    "precision compare": "--report",
    "precision bisect": "",
    "precision check": "",
    "precision weights": "",
    "precision ranks": "",
    "precision ops": "",
    "precision env": "",
    "advise": "--report",
    "profile": "",
    "tune": "",
}


def studio(
    folders: Folder = None,
    host: Host = "127.0.0.1",
    port: Port = 7860,
    read_only: ReadOnly = False,
    allow_host: AllowHost = None,
) -> None:
    """Open npukit in a browser: port, train, chat, compare.

    Prints an address with a token; only who has it gets in. Paths outside the folders are refused. Runs are processes
    of their own: they go on when the page is closed or the studio ends, and the next studio finds them.

    Examples:
        npukit studio  # in the current folder
        npukit studio work /data/models --port 8080  # with a further folder of models
        npukit studio --read-only
    """
    from npukit.studio.folders import Folders
    from npukit.studio.options import StudioOptions
    from npukit.studio.start import start

    given = Folders.of(folders or [Path()])
    options = StudioOptions(
        given, host, port, read_only=read_only, names=tuple(allow_host or ()), verbs={n: form(n) for n in FORMS}
    )
    start(options, lambda address: print(f"npukit studio: {address}\nCtrl-C ends it; runs go on.", flush=True))


def form(name: str) -> dict[str, Any]:
    """What a form shows of a verb: its options as the command line declares them.

    >>> form("export")["options"][0]["name"]
    'model'
    """
    module, _, inner = name.partition(" ")
    function = getattr(importlib.import_module(f"npukit.cli.{module}"), inner or module)
    uses = next(verb.uses for group in VERBS.values() for verb in group if verb.name == module)
    function = with_options(function, uses) if uses else function
    declared = inspect.signature(function).parameters
    page = FORMS[name]
    hints = typing.get_type_hints(function, include_extras=True)
    hints = {parameter: hints[parameter] for parameter in declared if parameter not in (*NOT_IN_FORMS, page.strip("-"))}
    fields = [_field(parameter, hint, declared[parameter].default) for parameter, hint in hints.items()]
    return {
        "options": fields,
        "names": [field["name"] for field in fields],
        "summary": (function.__doc__ or "").partition("\n")[0],
        "json": "json" in declared and name not in WITHOUT_RESULT,
        "page": page,
    }


def _field(name: str, hint: Any, default: Any) -> dict[str, Any]:
    annotation, info = typing.get_args(hint)[:2]
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    plain = next(
        part for part in (typing.get_args(annotation) if is_union else (annotation,)) if part is not type(None)
    )
    inner = typing.get_args(plain) if typing.get_origin(plain) in (list, Literal) else (plain,)
    kind, choices = "text", []
    if isinstance(inner[0], type) and issubclass(inner[0], Enum):
        kind, choices = "choice", [member.value for member in inner[0]]
    elif isinstance(inner[0], str):
        kind, choices = "choice", list(inner)
    elif inner[0] in (int, float, bool):
        kind = "switch" if inner[0] is bool else "number"
    elif inner[0] is Path or name in PATHS:
        kind = "path"
    is_argument = isinstance(info, typer.models.ArgumentInfo)
    names = [flag for word in info.param_decls or () for flag in word.split("/") if flag.startswith("--")]
    flag = "" if is_argument else names[0] if names else f"--{name.replace('_', '-')}"
    default = None if default is inspect.Parameter.empty else getattr(default, "value", default)
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "flag": flag,
        "off": [other for other in names[1:] if other.startswith("--no-")],
        "kind": "command" if name == "command" else kind,
        "choices": choices,
        "list": typing.get_origin(plain) is list,
        "default": str(default) if isinstance(default, Path) else default,
        "required": is_argument and default is None and type(None) not in typing.get_args(annotation),
        "meaning": info.help or "",
    }
