"""Chat: any model, run or checkpoint behind `npukit serve`, which a page of the studio reaches through this server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.inference import server
from npukit.studio.guard import refusal
from npukit.studio.runs import Run, State
from npukit.studio.studio import Studio, text
from npukit.web.assets import HEADERS, POLICY, SHARED, asset

HEAD = 1 << 16  # bytes of a response's head
FOLDER = Path(server.__file__).parent / "static"  # of the chat page
PASSED_ON = ("v1/models", "v1/chat/completions")
FRAMED = HEADERS | {"Content-Security-Policy": f"{POLICY}frame-ancestors 'self'"}


async def _ready(studio: Studio, request: dict[str, Any]) -> Any:
    run = studio.runs.find(text(request, "id"))
    state = run.state
    is_ready = False
    if state is State.running:
        with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            status, _, _, writer = await _asked(run, "GET", "health", b"")
            writer.close()
            is_ready = status == 200
    return {"state": state.value, "ready": is_ready}


def routes(studio: Studio) -> list[Route]:
    """The routes of this part, and those of the chat page, which are passed on to the run's own server."""

    async def page(request: Request) -> Response:
        name = request.path_params["name"]
        file = asset(name or "index.html", [FOLDER, SHARED])
        if file is None:
            return refusal(404, "There is no such file.")
        file.headers["Content-Security-Policy"] = FRAMED["Content-Security-Policy"]
        return file

    async def index(request: Request) -> Response:
        if not request.url.path.endswith("/"):
            return RedirectResponse(f"{request.path_params['id']}/")
        request.path_params["name"] = ""
        return await page(request)

    async def passed_on(request: Request) -> Response:
        path = request.path_params["path"]
        if path not in PASSED_ON:
            return refusal(404, "There is no such route.")
        if studio.options.read_only and request.method != "GET":
            return refusal(403, "This studio is read-only: start it without --read-only to change anything.")
        try:
            run = studio.runs.find(request.path_params["id"])
            if run.record.kind != "serve":
                return refusal(404, "This run is not a chat.")
            status, kind, reader, writer = await _asked(run, request.method, path, await request.body())
        except NpukitError as error:
            return refusal(404, str(error))
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            return refusal(503, "The model is not loaded, or its process has ended.")
        return StreamingResponse(_body(reader, writer), status, HEADERS, kind)

    return [
        studio.get("/api/chat/ready", _ready),
        Route("/served/{id}", index),
        Route("/served/{id}/", index),
        Route("/served/{id}/page/{name}", page),
        Route("/served/{id}/{path:path}", passed_on, methods=["GET", "POST"]),
    ]


async def _asked(
    run: Run, method: str, path: str, body: bytes
) -> tuple[int, str, asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask the run's own server, in HTTP 1.0, whose answers simply end; what is closed here is cancelled there."""
    record = run.record
    port = int(record.argv[record.argv.index("--port") + 1])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=HEAD)
    head = [f"{method} /{path} HTTP/1.0", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    head += [f"Authorization: Bearer {record.variables['NPUKIT_API_KEY']}", f"Content-Length: {len(body)}", "", ""]
    writer.write("\r\n".join(head).encode("latin-1") + body)
    await writer.drain()
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split(" ", 2)[1]), fields.get("content-type", "application/json"), reader, writer


async def _body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[bytes]:
    try:
        while piece := await reader.read(1 << 14):
            yield piece
    finally:
        writer.close()


def reached_by_us() -> tuple[list[str], dict[str, str]]:
    """The words and the variables with which a server listens on this machine, for the studio alone."""
    return ["--port", str(_free_port())], {"NPUKIT_API_KEY": secrets.token_urlsafe(24)}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
