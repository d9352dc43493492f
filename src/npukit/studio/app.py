"""The studio as one Starlette app: static pages and their routes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from npukit import __version__
from npukit.studio.api import chat, data, machine, port, runs, train, verbs
from npukit.studio.guard import Guard, refusal
from npukit.studio.options import StudioOptions
from npukit.studio.studio import Studio
from npukit.web.assets import HEADERS, POLICY, SHARED, asset

STATIC = Path(__file__).parent / "static"
PAGE = HEADERS | {"Content-Security-Policy": f"{POLICY}frame-src 'self'; frame-ancestors 'none'"}
SECONDS_BETWEEN = 1.0  # between two checks of the queue
_log = logging.getLogger(__name__)


def make_app(options: StudioOptions) -> Guard:
    """The app. It writes only below the workspace's .npukit, and what the user requests.

    >>> uvicorn.run(make_app(StudioOptions(Folders.of([Path("work")]), token="secret")))
    """
    studio = Studio(options)

    async def index(_: Request) -> Response:
        page = asset("index.html", [STATIC])
        assert page is not None
        page.headers["Content-Security-Policy"] = PAGE["Content-Security-Policy"]
        return page

    async def file(request: Request) -> Response:
        return asset(request.path_params["name"], [STATIC, SHARED]) or refusal(404, "There is no such file.")

    async def session(request: Request) -> Response:
        answer: dict[str, Any] = {
            "csrf": request.scope["csrf"],
            "version": __version__,
            "read_only": options.read_only,
            "workspace": studio.folders.workspace.name,
            "folder": str(studio.folders.workspace),
        }
        return JSONResponse(answer, headers=HEADERS)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        ticking = asyncio.create_task(_tick(studio)) if not options.read_only else None
        yield
        if ticking:
            ticking.cancel()
        studio.workers.close()

    pages = [Route("/", index), Route("/page/{name}", file), Route("/api/session", session)]
    parts = [route for module in (machine, port, data, train, runs, chat, verbs) for route in module.routes(studio)]
    app = Starlette(routes=[*pages, *parts], lifespan=lifespan, exception_handlers={HTTPException: _refused})
    return Guard(app, options)


async def _tick(studio: Studio) -> None:
    while True:
        try:
            await run_in_threadpool(studio.queue.tick)
        except Exception:  # a run that cannot be started must not block the others
            _log.exception("the queue")
        await asyncio.sleep(SECONDS_BETWEEN)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return refusal(error.status_code, "There is no such page." if error.status_code == 404 else error.detail)
