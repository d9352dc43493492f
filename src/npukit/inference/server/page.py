"""The chat page: static files that may connect only to this server."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from npukit.inference.server.errors import ApiError
from npukit.inference.server.serving import Serving
from npukit.web.assets import HEADERS, SHARED, asset

FOLDER = Path(__file__).parent / "static"


def routes(_: Serving) -> APIRouter:
    """The page and its files."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html", headers=HEADERS)

    @router.get("/page/{name}")
    async def file(name: str) -> Response:
        file = asset(name, [FOLDER, SHARED])
        if file is None:
            raise ApiError(404, f"There is no {name}.")
        return file

    return router
