"""Sends answers: whole, as long as the client is connected, or as a stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from npukit.inference.engine.request import Token
from npukit.inference.server.errors import ApiError
from npukit.inference.server.generate import Generation, Piece
from npukit.inference.server.serving import Serving

T = TypeVar("T")
log = logging.getLogger(__name__)
LINE_BREAKS = {code: f"\\u{code:04x}" for code in (0x85, 0x2028, 0x2029)}  # some clients split lines at these
MIN_LOGPROB = -9999.0  # OpenAI's value for probability 0, because JSON has no infinity


def new_id(prefix: str) -> str:
    """An id in OpenAI's form: chatcmpl-…"""
    return f"{prefix}{uuid.uuid4().hex}"


def finite(logprob: float) -> float:
    """A finite log-probability, for JSON."""
    return max(logprob, MIN_LOGPROB)


def usage(prompt: int, answer: int) -> dict[str, int]:
    """The token counts of a request."""
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def prompt_logprobs(serving: Serving, tokens: tuple[Token, ...]) -> list[dict[str, Any] | None]:
    """vLLM's field of that name: for each token of the prompt, what was likely there."""
    return [_likely(serving, token) if token.logprob is not None else None for token in tokens]


def _likely(serving: Serving, token: Token) -> dict[str, Any]:
    ranks = {number: rank for rank, (number, _) in enumerate(token.top, 1)}
    every = {token.id: token.logprob or 0.0, **dict(token.top)}
    return {
        str(number): {
            "logprob": finite(logprob),
            "rank": ranks.get(number),
            "decoded_token": serving.token(number)[0],
        }
        for number, logprob in every.items()
    }


async def while_connected(raw_request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client disconnects."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(raw_request))
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(499, "The client has left.")
        return task.result()
    finally:
        for future in (task, leaving):
            future.cancel()


async def _left(raw_request: Request) -> None:
    while (await raw_request.receive())["type"] != "http.disconnect":
        pass


def event(data: dict[str, Any], name: str | None = None) -> str:
    """One event of a stream."""
    head = f"event: {name}\n" if name else ""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).translate(LINE_BREAKS)
    return f"{head}data: {text}\n\n"


class EventStream(StreamingResponse):
    """A stream of events that frees the places of its answers however it ends."""

    def __init__(self, generation: Generation, events: AsyncIterator[str]) -> None:
        super().__init__(
            _with_errors(events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )
        self._generation = generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._generation.close()


async def _with_errors(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """Errors after the first byte become events."""
    try:
        async for sent in events:
            yield sent
    except ApiError as error:
        yield event(error.as_json())
    except Exception:
        log.exception("An answer failed")
        yield event(ApiError(500, "The server failed to answer: its log says why.").as_json())


def counted(pieces: list[Piece]) -> int:
    """The generated tokens of whole answers."""
    return sum(len(piece.tokens) for piece in pieces)
