"""Runs requests on the engine and returns their tokens as pieces of text."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from npukit.inference.engine.request import Output, Request, Token
from npukit.inference.server.errors import as_api_error
from npukit.inference.server.serving import Serving
from npukit.inference.service import OutputStream
from npukit.inference.text import TextStream


@dataclass(frozen=True)
class ChoiceRequest:
    """One of a client's requested answers."""

    request: Request
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    hidden: frozenset[int] = frozenset()
    stop_tokens: frozenset[int] = frozenset()  # of the request, beside the model's own


@dataclass(frozen=True)
class Piece:
    """The next part of one answer; the last piece of each has a `finish_reason`."""

    index: int
    text: str
    tokens: tuple[Token, ...] = ()
    prompt_logprobs: tuple[Token, ...] = ()
    finish_reason: Literal["stop", "length"] | None = None
    stop_reason: str | int | None = None


class Reader:
    """Turns the outputs for one answer into pieces."""

    def __init__(self, index: int, choice: ChoiceRequest, serving: Serving) -> None:
        self._index, self._choice, self._metrics = index, choice, serving.metrics
        self._text = TextStream(serving.tokenizer, choice.stops, choice.keep_stop, choice.hidden)
        self._start = self._last = time.monotonic()
        self._count = 0

    def read(self, outputs: list[Output]) -> Piece:
        """The piece of these outputs; tokens after a stop string do not count."""
        tokens: list[Token] = []
        prompt: tuple[Token, ...] = ()
        finish: Literal["stop", "length"] | None = None
        reason: str | int | None = None
        text = ""
        for output in outputs:
            prompt = prompt or output.prompt_logprobs
            if output.finish_reason == "error":
                raise as_api_error(output.error)
            if output.token is not None:
                tokens.append(output.token)
                is_end = output.finish_reason == "stop"
                text += "" if is_end else self._text.add(output.token.id)
                reason = output.token.id if is_end and output.token.id in self._choice.stop_tokens else None
            if self._text.stopped is not None:
                finish, reason = "stop", self._text.stopped
                break
            if output.finish_reason is not None:
                finish = "stop" if output.finish_reason == "stop" else "length"
                text += self._text.end()
                if self._text.stopped is not None:
                    finish, reason = "stop", self._text.stopped
        self._measure(len(tokens), finish)
        return Piece(self._index, text, tuple(tokens), prompt, finish, reason)

    def _measure(self, tokens: int, finish: str | None) -> None:
        now = time.monotonic()
        if tokens and not self._count:
            self._metrics.first_token.observe(now - self._start)
        elif tokens:
            self._metrics.next_token.observe((now - self._last) / tokens)
        self._last, self._count = now, self._count + tokens
        if finish:
            self._metrics.whole.observe(now - self._start)
            self._metrics.prompt_length.observe(len(self._choice.request.prompt))
            self._metrics.answer_length.observe(self._count)
            self._metrics.finished(finish)


class Generation:
    """The answers to one HTTP request. Iterate over it for the pieces of all of them, and always close it.

    >>> async with await Generation.start(serving, choices) as generation:
    ...     async for piece in generation: ...
    """

    def __init__(self, serving: Serving, choices: Sequence[ChoiceRequest]) -> None:
        self._serving, self._choices = serving, choices
        self._answers: list[OutputStream] = []
        self._cleanup = contextlib.ExitStack()

    @classmethod
    async def start(cls, serving: Serving, choices: Sequence[ChoiceRequest]) -> Generation:
        """Submit the requests; raises if the engine refuses one or the server is full."""
        self = cls(serving, choices)
        try:
            media = (choice.request.media for choice in choices)
            pixels = sum(item.nbytes for item in media if item is not None)
            self._cleanup.enter_context(serving.places(len(choices), pixels))
            for choice in choices:
                answering = await serving.service.submit(choice.request)
                self._answers.append(answering)
                self._cleanup.callback(answering.cancel)
                timer = asyncio.get_running_loop().call_later(serving.options.timeout, self._cut, answering)
                self._cleanup.callback(timer.cancel)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Abort the answers that are still running."""
        self._cleanup.close()

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _cut(self, answering: OutputStream) -> None:
        """End an answer at the time limit, with the finish reason `length`."""
        number = answering.request_id
        answering.put(Output(number, finish_reason="length"))
        self._serving.service.cancel(number)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        readers = [self._read(index) for index in range(len(self._answers))]
        if len(readers) == 1:
            async for piece in readers[0]:
                yield piece
        else:
            async for piece in _merged(readers):
                yield piece

    async def _read(self, index: int) -> AsyncIterator[Piece]:
        answering = self._answers[index]
        reader = Reader(index, self._choices[index], self._serving)
        async for outputs in answering:
            piece = reader.read(outputs)
            yield piece
            if piece.finish_reason:
                answering.cancel()
                return


async def _merged(sources: Sequence[AsyncIterator[Piece]]) -> AsyncIterator[Piece]:
    """The pieces of all sources in the order of arrival; a slow reader slows down every source."""
    pieces: asyncio.Queue[Piece | BaseException | None] = asyncio.Queue(len(sources))

    async def pump(source: AsyncIterator[Piece]) -> None:
        try:
            async for piece in source:
                await pieces.put(piece)
            await pieces.put(None)
        except Exception as error:
            await pieces.put(error)

    tasks = [asyncio.ensure_future(pump(source)) for source in sources]
    try:
        running = len(tasks)
        while running:
            piece = await pieces.get()
            if isinstance(piece, BaseException):
                raise piece
            if piece is None:
                running -= 1
            else:
                yield piece
    finally:
        for task in tasks:
            task.cancel()


async def whole(generation: Generation, number: int) -> list[Piece]:
    """Every answer as one piece, in the order of the requests."""
    parts: list[list[Piece]] = [[] for _ in range(number)]
    async for piece in generation:
        parts[piece.index].append(piece)
    return [_merge_pieces(pieces) for pieces in parts]


def _merge_pieces(pieces: list[Piece]) -> Piece:
    return replace(
        pieces[-1],
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        prompt_logprobs=next((piece.prompt_logprobs for piece in pieces if piece.prompt_logprobs), ()),
    )
