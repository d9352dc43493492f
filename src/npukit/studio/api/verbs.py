"""The pages of other verbs (export, eval, infer, precision, performance): a form, and a run of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.routing import Route

from npukit.studio.api.chat import reached_by_us
from npukit.studio.forms import words
from npukit.studio.studio import BadRequest, Studio, number, text

OFFERED = 500  # paths of a kind


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.get("/api/forms", lambda studio, _: studio.options.verbs),
        studio.post("/api/forms/start", _start),
        studio.get("/api/models", lambda studio, _: find_models(studio)),
        studio.get("/api/files", lambda studio, request: _entries(studio, text(request, "path", "."))),
    ]


def _start(studio: Studio, request: dict[str, Any]) -> Any:
    verb = text(request, "verb")
    form = studio.options.verbs.get(verb)
    if form is None:
        raise BadRequest("There is no such form.")
    values = request.get("values")
    if not isinstance(values, dict):
        raise BadRequest("values should be an object.")
    command = words(form, values, studio.folders)
    device = str(values.get("device") or "auto") if "device" in form["names"] else "cpu"
    cards = number(values, "devices", 1, 1, 1024) if values.get("devices") else 1
    more, variables = reached_by_us() if verb == "serve" else ([], {})
    return studio.start(
        verb,
        [*command, *more, *(["--json"] if form["json"] else [])],
        device,
        cards,
        title=_title(form, values),
        has_result=bool(form["json"]),
        output=str(values.get("output") or ""),
        page=form["page"],
        variables=variables,
    )


def _entries(studio: Studio, path: str) -> dict[str, Any]:
    folder = studio.folders.inside(path or ".")
    above = folder.parent if folder not in studio.folders.roots else None
    return {
        "path": studio.folders.shown(folder),
        "above": studio.folders.shown(above) if above else None,
        "roots": [studio.folders.shown(root) for root in studio.folders.roots],
        "entries": studio.folders.entries(folder),
    }


def _title(form: Mapping[str, Any], values: dict[str, Any]) -> str:
    """The title of a run: the arguments of its command."""
    arguments = [values.get(option["name"]) for option in form["options"] if not option["flag"]]
    names = [
        str(name) for argument in arguments for name in (argument if isinstance(argument, list) else [argument]) if name
    ]
    return ", ".join(names)[:120]


def find_models(studio: Studio) -> dict[str, Any]:
    """Models, adapters and data in the folders, to choose from in a form."""
    known = studio.finder.contents()
    kinds = {"models": known.models, "adapters": known.adapters, "data": known.data}
    return {name: [studio.folders.shown(path) for path in paths[:OFFERED]] for name, paths in kinds.items()}
