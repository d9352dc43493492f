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
SHOWN = 5  # mistakes in a message
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


def invalid_fields(errors: Sequence[Any]) -> ApiError:
    """pydantic's errors: all of them in the message, the first as the parameter."""
    placed = [(".".join(str(part) for part in error["loc"] if part != "body"), error) for error in errors]
    sentences = [f"{where}: {error['msg']} ({error['type']})".removeprefix(": ") for where, error in placed[:SHOWN]]
    return bad_request("; ".join(sentences), placed[0][0] or None, placed[0][1]["type"])


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
        return invalid_fields(error.errors()).as_response()

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
