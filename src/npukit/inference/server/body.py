"""Reads the JSON of requests strictly: values that would fail in a tokenizer, grammar or answer are refused here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json

from npukit.inference.server.errors import ApiError, bad_request

OVERFLOW = re.compile(rb"[eE]\+?\d{3}|\d{309}")  # a number that may be too large for a float


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; a 400 for lone surrogates, NaN, infinite numbers and more than 200 levels.

    >>> parse_json(b'{"n": 1}')
    {'n': 1}
    """
    try:
        value = from_json(data, allow_inf_nan=False)
        if OVERFLOW.search(data):
            json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise bad_request(f"This is not usable JSON: {error}.", code="json_invalid") from error
    return value


class StrictRequest(Request):
    """A request whose body is read by `parse_json`."""

    async def json(self) -> Any:
        """The body."""
        return parse_json(await self.body())


class StrictRoute(APIRoute):
    """A route whose requests are StrictRequests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler with a StrictRequest."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None and not _is_json(request.headers.get("content-type", "")):
                raise ApiError(415, "Send the request as JSON, with the header Content-Type: application/json.")
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def make_router() -> APIRouter:
    """A router whose routes read JSON strictly.

    >>> router = make_router()
    """
    return APIRouter(route_class=StrictRoute)
