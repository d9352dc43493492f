"""The chat page: static files of this package, allowed to talk to this server and to nobody else."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from npukit.inference.server.errors import ApiError
from npukit.inference.server.serving import Serving

FOLDER = Path(__file__).parent / "static"
FILES = {"page.css": "text/css"} | dict.fromkeys(("page.js", "markdown.js", "words.js"), "text/javascript")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def routes(_: Serving) -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html", headers=HEADERS)

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise ApiError(404, f"There is no {name}.")
        return FileResponse(FOLDER / name, media_type=FILES[name], headers=HEADERS)

    return router
