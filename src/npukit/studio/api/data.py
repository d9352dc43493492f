"""Data: the preview of a data set, and the pictures of its rows."""

from __future__ import annotations

import mimetypes
from typing import TYPE_CHECKING, Any

from starlette.responses import FileResponse
from starlette.routing import Route

from npukit.studio.studio import BadRequest, Studio, number, text
from npukit.web.assets import HEADERS

if TYPE_CHECKING:
    pass
from npukit.studio.preview import look

LARGEST_PICTURE = 16 << 20  # bytes
PICTURES = ("image/png", "image/jpeg", "image/webp", "image/gif", "image/bmp")


def routes(studio: Studio) -> list[Route]:
    """The routes of this part."""
    return [
        studio.post("/api/data/preview", _preview, changes=False),
        studio.get("/api/data/picture", _picture),
    ]


async def _preview(studio: Studio, request: dict[str, Any]) -> Any:
    names = ("model", "data", "template", "task", "tokens")
    wanted = {name: text(request, name, "", longest=4096) for name in names}
    if not wanted["model"] or not wanted["data"]:
        raise BadRequest("Choose a model and a data set.")
    for name in ("model", "data", "template"):
        studio.folders.check(wanted[name].partition("#")[0])
    wanted["folder"] = text(request, "folder", "data", longest=4096)
    studio.folders.inside(wanted["folder"])
    cutoff, page = number(request, "cutoff", 2048, 1, 2**22), number(request, "page", 0, 0, 10**6)
    return await studio.workers.do(look, wanted, cutoff, page)


def _picture(studio: Studio, request: dict[str, Any]) -> Any:
    path = studio.folders.inside(text(request, "path"))
    kind, _ = mimetypes.guess_type(path.name.lower())
    if kind not in PICTURES or not path.is_file() or path.stat().st_size > LARGEST_PICTURE:
        raise BadRequest("This is not a picture that can be shown.")
    return FileResponse(path, media_type=kind, headers=HEADERS)
