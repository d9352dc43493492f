"""What stands before every route: the key, the size of bodies, and web pages of others."""

from __future__ import annotations

import hmac

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from npukit.inference.server.errors import ApiError, bad_request
from npukit.inference.server.metrics import Metrics
from npukit.inference.server.options import ServerOptions

OPEN = ("/", "/health", "/ping", "/version", "/favicon.ico")  # and the page's own files: they hold nothing of anybody's
OPEN_FOLDER = "/page/"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Guard:
    """Answers what must not reach the routes."""

    def __init__(self, app: ASGIApp, options: ServerOptions, metrics: Metrics) -> None:
        self._app, self._options, self._metrics = app, options, metrics
        self._keys = [key.encode() for key in options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        counting = self._counting(send)
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_key(scope, headers)
            self._check_length(headers)
        except ApiError as error:
            return await error.as_response()(scope, receive, counting)
        await self._app(scope, self._limited(receive), counting)

    def _check_host(self, headers: Headers) -> None:
        """Without a key, a page of another site could reach a local server under a name of its own."""
        if self._options.api_keys or not self._options.is_local:
            return
        host = headers.get("host", "").lower()
        name = host[: host.rfind("]") + 1] if host.startswith("[") else host.partition(":")[0]
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
        if length.isdigit() and int(length) > self._options.max_body:
            raise self._too_large()

    def _too_large(self) -> ApiError:
        return bad_request(f"The request is larger than {self._options.max_body} bytes.", code="request_too_large")

    def _limited(self, receive: Receive) -> Receive:
        """Bodies that do not say how long they are, are counted."""
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._options.max_body:
                raise self._too_large()
            return message

        return limited

    def _counting(self, send: Send) -> Send:
        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._metrics.refused(message["status"])
            await send(message)

        return counting
