"""Errors as OpenAI's clients expect them: {"error": {"message", "type", "param", "code"}} and a fitting status."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as AnyHTTPException

from npukit.errors import NpukitError
from npukit.llm.chat.messages import TooLong

log = logging.getLogger(__name__)
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
SHOWN, COMPARED = 5, 50  # mistakes in a message, and those that they are chosen from
RETRY_AFTER = "1"  # seconds


class ApiError(HTTPException):  # FastAPI passes on an HTTPException that is raised while a body is read
    """An answer that is an error.

    >>> raise ApiError(404, "There is no model gpt-9.", "model", "model_not_found")
    """

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(status, message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def as_response(self) -> JSONResponse:
        """The answer."""
        headers = {"Retry-After": RETRY_AFTER} if self.status in (429, 503) else {}
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse(self.as_json(), self.status, headers)


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A mistake of the client."""
    return ApiError(400, message, param, code)


def as_api_error(error: Exception | None) -> ApiError:
    """The error that ended an answer: the client's mistake, or a failure of the server, which is in the log."""
    if isinstance(error, NpukitError):
        return bad_request(str(error))
    return ApiError(500, "The server failed to answer: its log says why.")


def too_long(longest: int, characters: int) -> ApiError:
    """A prompt that cannot fit, whatever its tokens are."""
    sentence = f"The model's context length is {longest} tokens, but the prompt has {characters} characters."
    return bad_request(sentence, "prompt", "context_length_exceeded")


def invalid_fields(errors: Sequence[Any], body: Any) -> ApiError:
    """pydantic's errors in a body: all of them in the message, the first as the parameter.

    >>> invalid_fields([{"loc": ("n",), "type": "int_type", "msg": "Input should be a number"}], {"n": []}).message
    'n: Input should be a number'
    """
    placed = [(_place(error, body), error) for error in errors[:COMPARED]]
    kept = [(where, error) for where, error in placed if not _is_elsewhere(where, error, placed)]
    messages: dict[str, list[str]] = {}
    for where, error in kept:
        messages.setdefault(where, []).append(_sentence(error))
    sentences = [f"{where}: {_either(some)}".removeprefix(": ") for where, some in messages.items()]
    begins_with = sentences[0].partition(" ")[0]  # what a check of the whole request names first
    param = kept[0][0] or (begins_with if isinstance(body, dict) and begins_with in body else None)
    return bad_request("; ".join(sentences[:SHOWN]), param, kept[0][1]["type"])


def _place(error: Any, body: Any) -> str:
    """The place in the request: pydantic's location without the names of its own types."""
    parts: list[str] = []
    value = body
    for part in error["loc"]:
        is_there = part in value if isinstance(value, dict) else isinstance(part, int) and isinstance(value, list)
        if is_there:
            value = value[part]
            parts.append(str(part))
    missing = [str(error["loc"][-1])] if error["type"] == "missing" and error["loc"][-1:] != ("body",) else []
    return ".".join([*parts, *missing])


def _is_elsewhere(where: str, error: Any, placed: Sequence[tuple[str, Any]]) -> bool:
    """Whether the error is that of a union's type which the value is not of: another one says more about it."""
    wrong = [other for other, kind in placed if not kind["type"].endswith("_type")]
    if error["type"].endswith("_type") and where in wrong:
        return True
    is_type = error["type"].endswith("_type") or error["type"] == "literal_error"
    return is_type and any(other.startswith(f"{where}.") for other, _ in placed)


def _either(sentences: Sequence[str]) -> str:
    """What is wrong in one place, once: a value of a union may be any of its types."""
    first, *others = dict.fromkeys(sentences)
    return "".join([first, *(f" or {other.removeprefix('Input should be ')}" for other in others)])


def _sentence(error: Any) -> str:
    if error["type"] in ("model_attributes_type", "model_type", "dict_type"):
        return "Input should be an object"
    return str(error["msg"]).removeprefix("Value error, ")


def answer_errors(app: FastAPI) -> None:
    """Give every error of the app OpenAI's form."""

    @app.exception_handler(ApiError)
    async def api_error(_: Request, error: ApiError) -> JSONResponse:
        return error.as_response()

    @app.exception_handler(TooLong)
    async def long(_: Request, error: TooLong) -> JSONResponse:
        return bad_request(str(error), "messages", "context_length_exceeded").as_response()

    @app.exception_handler(NpukitError)
    async def user_error(_: Request, error: NpukitError) -> JSONResponse:
        return bad_request(str(error)).as_response()

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return invalid_fields(error.errors(), error.body).as_response()

    @app.exception_handler(AnyHTTPException)
    async def http_error(request: Request, error: AnyHTTPException) -> JSONResponse:
        message = str(error.detail)
        if error.status_code == 404:
            routes = sorted(path for path in app.openapi()["paths"] if path.startswith("/v1/"))
            message = f"This server has no {request.url.path}; it has {', '.join(routes)}."
        return ApiError(error.status_code, message).as_response()

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:
        return ApiError(500, "The server failed to answer: its log says why.").as_response()
