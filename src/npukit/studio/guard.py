"""Checks before every route: the host name, the origin, the token and the size of bodies."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from npukit.studio.options import StudioOptions
from npukit.web.assets import HEADERS
from npukit.web.server import host_name, limited

COOKIE = "npukit-studio"
CSRF = "x-npukit-csrf"
MAX_BODY, MAX_QUESTION = 2 * 2**20, 16 * 2**20  # bytes; questions to a model may have pictures
TOO_LARGE = "The request is too large."
READING = ("GET", "HEAD")
WITHOUT_CSRF = "/served/"  # the chat page speaks OpenAI's API; its origin is checked, and its cookie is SameSite
SIGN_IN = (
    "<!doctype html><meta charset=utf-8><title>npukit studio</title><h1>npukit studio</h1>"
    "<p>Open the address that <code>npukit studio</code> printed when it started: it has the token."
    "<p>请打开 <code>npukit studio</code> 启动时打印的地址 (包含访问令牌)。"
)


class Guard:
    """Answers requests that must not reach the routes."""

    def __init__(self, app: ASGIApp, options: StudioOptions) -> None:
        self._app, self._options = app, options
        # The cookie does not contain the token itself
        self._secret = hashlib.sha256(options.token.encode()).hexdigest()

    @property
    def csrf(self) -> str:
        """The value that the studio's pages send with every change."""
        return hmac.new(self._options.token.encode(), b"csrf", "sha256").hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        scope["csrf"] = self.csrf
        answer = self._refusal(scope)
        if answer is not None:
            return await answer(scope, receive, send)
        await self._app(scope, limited(receive, _largest(scope), lambda: HTTPException(413, TOO_LARGE)), send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._options.allows(host_name(host)):
            return refusal(403, "The studio is not known by this name: start it with --allow-host NAME.")
        origin = headers.get("origin")
        foreign = origin is not None and urlsplit(origin).netloc.lower() != host.lower()
        if foreign or headers.get("sec-fetch-site") == "cross-site":
            return refusal(403, "This request came from a page of another site.")
        if not self._is_known(headers):
            return self._with_token(scope)
        if scope["method"] not in READING and not scope["path"].startswith(WITHOUT_CSRF):
            token = headers.get(CSRF, "")
            if not hmac.compare_digest(token.encode(), self.csrf.encode()):
                return refusal(403, "The page is out of date: reload it.")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > _largest(scope):
            return refusal(413, TOO_LARGE)
        return None

    def _is_known(self, headers: Headers) -> bool:
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        by_cookie = hmac.compare_digest(cookie.encode(), self._secret.encode())
        by_header = hmac.compare_digest(bearer.strip().encode(), self._options.token.encode())
        return by_cookie or (scheme.lower() == "bearer" and by_header)

    def _with_token(self, scope: Scope) -> Response:
        """Move the token from the address to a cookie."""
        query = parse_qsl(scope["query_string"].decode("latin-1"))
        token = dict(query).get("token", "")
        if hmac.compare_digest(token.encode(), self._options.token.encode()) and scope["method"] == "GET":
            rest = urlencode([(name, value) for name, value in query if name != "token"])
            answer = RedirectResponse("./" + (f"?{rest}" if rest else ""), 303, HEADERS)
            answer.set_cookie(COOKIE, self._secret, 30 * 86400, httponly=True, samesite="strict")
            return answer
        if scope["path"] == "/":
            return Response(SIGN_IN, 401, HEADERS, "text/html")
        return refusal(401, "Open the address that npukit studio printed when it started.")


def _largest(scope: Scope) -> int:
    return MAX_QUESTION if scope["path"].startswith(WITHOUT_CSRF) else MAX_BODY


def refusal(status: int, sentence: str) -> JSONResponse:
    """An error in the form that npukit's pages expect."""
    return JSONResponse({"error": {"message": sentence}}, status, HEADERS)
