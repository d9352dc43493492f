"""npukit studio"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from npukit.cli.help import COMMON, choices, inner_type, long_name, panel
from npukit.cli.verbs import VERBS, load
from npukit.report.language import translated

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
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Show everything, but start and change nothing.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        show_default=False,
        help="Further host name of the studio in browsers, such as a proxy's. Repeatable.",
    ),
]
PATHS = ("model", "data", "adapter", "words", "profiles")  # text that names a file, or something on a hub
# Options that the studio sets itself, so that its own server reaches the model's.
SET_BY_STUDIO = ("host", "port", "api_key", "no_key", "cors", "ssl_keyfile", "ssl_certfile")
NOT_IN_FORMS = ("explain", "context", "json", "report", "dry_run", *SET_BY_STUDIO)
WITHOUT_RESULT = ("serve",)  # it runs until somebody unloads the model
# Verbs with a form of their own in the studio. Those with --report write a page.
FORMS = (
    *("export", "eval", "infer", "serve", "advise", "profile", "tune"),
    *(f"precision {verb}" for verb in ("capture", "compare", "bisect", "check", "weights", "ranks", "ops", "env")),
)


def studio(
    folders: Folder = None,
    host: Host = "127.0.0.1",
    port: Port = 7860,
    read_only: ReadOnly = False,
    allow_host: AllowHost = None,
) -> None:
    """Open npukit in a browser: port, train, chat, compare.

    Prints an address with an access token. Paths outside the folders are refused. Runs are separate processes: they
    continue when the page is closed or the studio ends, and the next studio finds them.

    Examples:
        npukit studio  # in the current folder
        npukit studio work /data/models --port 8080  # with a further folder of models
        npukit studio --read-only
    """
    from npukit.studio.folders import Folders
    from npukit.studio.options import StudioOptions
    from npukit.studio.start import start

    forms = {name: form(name) for name in FORMS}
    names = tuple(allow_host or ())
    options = StudioOptions(Folders.of(folders or [Path()]), host, port, read_only=read_only, names=names, verbs=forms)
    ends = translated("Ctrl-C ends it; runs go on.")
    start(options, lambda address: print(f"npukit studio: {address}\n{ends}", flush=True))


def form(name: str) -> dict[str, Any]:
    """Return the options of a verb for a form, as the command line declares them.

    >>> form("export")["options"][0]["name"]
    'model'
    """
    module, _, inner = name.partition(" ")
    command = load(next(verb for group in VERBS.values() for verb in group if verb.name == module))
    command = command.commands[inner] if inner else command
    fields = [_field(param) for param in command.params if panel(param) != COMMON and param.name not in NOT_IN_FORMS]
    names = {param.name for param in command.params}
    return {
        "options": fields,
        "names": [field["name"] for field in fields],
        "summary": (command.help or "").partition("\n")[0],
        "json": "json" in names and name not in WITHOUT_RESULT,
        "page": "--report" if "report" in names else "",
    }


def _field(param: Any) -> dict[str, Any]:
    is_argument, is_list = param.param_type_name == "argument", param.nargs == -1 or getattr(param, "multiple", False)
    known, inner = choices(param), inner_type(param)
    if param.name == "command":
        kind = "command"
    elif known:
        kind = "choice"
    elif inner in (int, float):
        kind = "number"
    elif inner is Path or param.name in PATHS:
        kind = "path"
    else:
        kind = "switch" if inner is bool else "text"
    default = getattr(param.default, "value", param.default)
    return {
        "name": param.name,
        "label": param.name.replace("_", " ").capitalize(),
        "flag": "" if is_argument else long_name(param),
        "off": [other for other in param.secondary_opts if other.startswith("--no-")],
        "kind": kind,
        "choices": known,
        "list": is_list,
        "default": None if is_list or callable(default) or "UNSET" in str(default) else default,
        "required": is_argument and param.required,
        "meaning": param.help or "",
    }
