"""The common part of the studio's routes."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from npukit.errors import NpukitError
from npukit.report.json import plain, to_json
from npukit.report.language import chinese
from npukit.studio.curves import Logs
from npukit.studio.find import Finder
from npukit.studio.folders import Folders, Refused
from npukit.studio.guard import refusal
from npukit.studio.options import StudioOptions
from npukit.studio.queue import Queue, device_of
from npukit.studio.runs import Runs
from npukit.studio.work import Workers
from npukit.web.assets import HEADERS

# Fields of answers with text of npukit's, which is translated.
MESSAGES = frozenset({"check", "what", "why", "says", "remedy", "meaning", "causes", "remedies", "summary"})


class Studio:
    """The state of a server. Everything that must last is on disk, where another server finds it."""

    def __init__(self, options: StudioOptions) -> None:
        self.options = options
        self.runs = Runs(options.folders.state)
        self.queue = Queue(self.runs)
        self.finder = Finder(options.folders.roots)
        self.logs = Logs()
        self.workers = Workers()

    @property
    def folders(self) -> Folders:
        return self.options.folders

    def get(self, path: str, handler: Handler) -> Route:
        """A route that shows something; `handler` gets the studio and the query."""

        async def endpoint(request: Request) -> Response:
            return await self._answer(handler, dict(request.query_params), _wants_chinese(request))

        return Route(path, endpoint, methods=["GET"])

    def post(self, path: str, handler: Handler, changes: bool = True) -> Route:
        """A route that gets a JSON object; a read-only studio refuses those that change something."""

        async def endpoint(request: Request) -> Response:
            if changes and self.options.read_only:
                return refusal(403, "This studio is read-only: start it without --read-only to change anything.")
            try:
                body = json.loads(await request.body() or b"{}")
            except (ValueError, RecursionError):
                body = None
            if not isinstance(body, dict):
                return refusal(400, "The request is not a JSON object.")
            return await self._answer(handler, body, _wants_chinese(request))

        return Route(path, endpoint, methods=["POST"])

    def start(self, kind: str, words: list[str], device: str, cards: int, **record: Any) -> dict[str, Any]:
        """Queue a command as a run; `record` is what else is kept of it (see npukit.studio.runs.Record)."""
        device = device_of(device)
        cards = 0 if device == "cpu" else cards
        run = self.runs.add(kind, words, self.folders.workspace, device=device, cards=cards, **record)
        self.queue.tick()
        return {"id": run.folder.name, "command": run.record.command}

    async def _answer(self, handler: Handler, request: dict[str, Any], in_chinese: bool) -> Response:
        try:
            if inspect.iscoroutinefunction(handler):
                answer = await handler(self, request)
            else:
                answer = await run_in_threadpool(handler, self, request)
        except Refused as error:
            return refusal(403, str(error))
        except (NpukitError, BadRequest) as error:
            sentence = str(error)
            return refusal(422, (in_chinese and chinese(sentence)) or sentence)
        except OSError as error:  # a name that is too long, an unreadable file, a full disk
            return refusal(422, f"{error.strerror or error}.")
        if isinstance(answer, Response):
            return answer
        text = _json(answer)
        if in_chinese:
            text = await run_in_threadpool(lambda: _json(_in_chinese(json.loads(text))))
        # A name on disk may have bytes that are not UTF-8.
        return Response(text.encode(errors="replace"), 200, HEADERS, "application/json")


Handler = Callable[[Studio, dict[str, Any]], Any]


class BadRequest(Exception):
    """A request that the studio's pages never send."""


def text(request: dict[str, Any], name: str, default: str | None = None, longest: int = 2**20) -> str:
    """A text of the request."""
    value = request.get(name, default)
    if not isinstance(value, str) or len(value) > longest or "\0" in value:
        raise BadRequest(f"{name} should be text.")
    return value


def number(request: dict[str, Any], name: str, default: int, least: int = 0, most: int = 2**31) -> int:
    """A whole number of the request."""
    value = request.get(name, default)
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"{name} should be a number.") from None
    if isinstance(value, bool) or not least <= number <= most:
        raise BadRequest(f"{name} should be from {least} to {most}.")
    return number


def device_and_count(request: dict[str, Any], most: int) -> tuple[str, int]:
    """The kind of device that a request chooses, and how many."""
    device = text(request, "device", "sim")
    if device not in ("npu", "cuda", "sim", "cpu"):
        raise BadRequest("device should be npu, cuda, sim or cpu.")
    return device, number(request, "devices", 1, 1, most)


def _wants_chinese(request: Request) -> bool:
    return request.headers.get("accept-language", "").lower().startswith("zh")


def _in_chinese(value: Any, is_message: bool = False) -> Any:
    """An answer with its messages in Chinese, if they are translated."""
    if isinstance(value, dict):
        return {name: _in_chinese(item, name in MESSAGES) for name, item in value.items()}
    if isinstance(value, list):
        return [_in_chinese(item, is_message) for item in value]
    return (chinese(value) or value) if is_message and isinstance(value, str) else value


def _json(value: Any) -> str:
    """JSON for browsers, without NaN and Inf."""
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        finite = json.loads(to_json(value), parse_constant=lambda _: None)
        return json.dumps(finite, ensure_ascii=False)
