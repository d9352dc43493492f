"""What stands before every route: the key, the size of bodies, and web pages of others; and the end of the server."""

from __future__ import annotations

import asyncio
import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npukit.inference.server.errors import ApiError, bad_request
from npukit.inference.server.metrics import Metrics
from npukit.inference.server.output_stream import event
from npukit.llm.config.use import ServeOptions
from npukit.web.server import host_name, limited

OPEN = ("/", "/health", "/ping", "/version", "/favicon.ico")  # and the page's own files: they hold nothing of anybody's
OPEN_FOLDER = "/page/"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Answers what must not reach the routes."""

    def __init__(self, app: ASGIApp, options: ServeOptions, metrics: Metrics) -> None:
        self._app, self._options, self._metrics = app, options, metrics
        self._max_body = int(options.max_body * 2**20)  # bytes
        self._keys = [key.encode() for key in options.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        counting = Counted(send, self._metrics)
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_key(scope, headers)
            self._check_length(headers)
        except ApiError as error:
            return await error.as_response()(scope, receive, counting)
        try:
            await self._app(scope, limited(receive, self._max_body, self._too_large), counting)
        except asyncio.CancelledError:  # the time that answers have to end after a signal is over
            await counting.cut_off(scope, receive)

    def _check_host(self, headers: Headers) -> None:
        """Without a key, a page of another site could reach a local server under a name of its own."""
        if self._options.api_key or not self._options.is_local:
            return
        name = host_name(headers.get("host", "").lower())
        if name not in (*LOCAL_NAMES, self._options.host):
            raise ApiError(403, f"This server answers on this machine only, not as {name!r}.")

    def _check_key(self, scope: Scope, headers: Headers) -> None:
        path = scope["path"]
        if not self._keys or path in OPEN or path.startswith(OPEN_FOLDER) or scope["method"] == "OPTIONS":
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        # Every key is compared, so that the time says nothing about which one was nearly right.
        fits = [hmac.compare_digest(given.strip().encode(), key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(fits):
            raise ApiError(401, "The API key is missing or wrong: send it as a Bearer token.", code="invalid_api_key")

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._max_body:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return bad_request(f"The request is larger than {self._max_body} bytes.", code="request_too_large")


class Counted:
    """Sends an answer, counts errors, and knows how far it is."""

    def __init__(self, send: Send, metrics: Metrics) -> None:
        self._send, self._metrics = send, metrics
        self._headers: Headers | None = None  # once the answer has begun
        self._is_whole = False

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self._headers = Headers(raw=message["headers"])
            if message["status"] >= 400:
                self._metrics.refused(message["status"])
        elif message["type"] == "http.response.body":
            self._is_whole = not message.get("more_body", False)
        await self._send(message)

    async def cut_off(self, scope: Scope, receive: Receive) -> None:
        """Say that the server ends: as the answer, or as the last event of one that streams."""
        error = ApiError(503, "The server is shutting down.")
        if self._headers is None:
            await error.as_response()(scope, receive, self)
        elif not self._is_whole and self._headers.get("content-type", "").startswith("text/event-stream"):
            await self._send({"type": "http.response.body", "body": event(error.as_json()).encode()})
