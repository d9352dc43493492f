"""/v1/completions: prompts continued as they are, without a chat template."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from npukit.inference.engine.request import Token
from npukit.inference.server.body import make_router
from npukit.inference.server.choice_request import constraint_of, make_choices
from npukit.inference.server.errors import bad_request, too_long
from npukit.inference.server.generate import ChoiceRequest, Generation, Piece, whole
from npukit.inference.server.output_stream import (
    EventStream,
    counted,
    event,
    finite,
    new_id,
    prompt_logprobs,
    usage,
    while_connected,
)
from npukit.inference.server.schema import CompletionRequest
from npukit.inference.server.serving import Serving

DEFAULT_LENGTH = 16  # OpenAI's
MAX_PROMPTS = 2048


def routes(serving: Serving) -> APIRouter:
    """The route of /v1/completions."""
    router = make_router()

    @router.post("/v1/completions")
    async def create(request: CompletionRequest, raw_request: Request) -> Response:
        choices = await serving.aside(raw_request, lambda: _choices(serving, request))
        completion = CompletionResponse(serving, request, choices)
        generation = await Generation.start(serving, choices)
        if request.stream:
            return EventStream(generation, completion.events(generation))
        async with generation:
            answers = await while_connected(raw_request, whole(generation, len(choices)))
        return JSONResponse(completion.as_json(answers))

    return router


def _choices(serving: Serving, request: CompletionRequest) -> list[ChoiceRequest]:
    prompts = _prompts(request)
    if len(prompts) * (request.n or 1) > MAX_PROMPTS:
        raise bad_request(f"A request can have {MAX_PROMPTS} answers at most.", "prompt")
    longest = DEFAULT_LENGTH if request.max_tokens is None else request.max_tokens
    if not longest and not request.echo:
        raise bad_request("max_tokens must be at least 1, except with echo.", "max_tokens")
    if request.echo and request.logprobs is not None:
        if request.stream:
            raise bad_request("echo with logprobs is not for streams.", "stream")
        request = request.model_copy(update={"prompt_logprobs": request.logprobs})
    constraint = constraint_of(serving, request)
    every = (_ids(serving, prompt, request) for prompt in prompts)
    made = [make_choices(serving, request, ids, longest, request.logprobs, constraint) for ids in every]
    return list(itertools.chain.from_iterable(made))


def _prompts(request: CompletionRequest) -> list[str | list[int]]:
    """One or more prompts, all text or all token ids."""
    prompt = request.prompt
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    if not prompt:
        raise bad_request("There is no prompt.", "prompt")
    return prompt  # type: ignore[return-value]


def _ids(serving: Serving, prompt: str | list[int], request: CompletionRequest) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    if request.truncate_prompt_tokens is None and len(prompt) > serving.max_characters:
        raise too_long(serving.max_model_len, len(prompt))
    ids: list[int] = serving.chat.tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens is not False)
    return ids


class CompletionResponse:
    """The answer to one request of /v1/completions."""

    def __init__(self, serving: Serving, request: CompletionRequest, choices: list[ChoiceRequest]) -> None:
        self._serving, self._request, self._choices = serving, request, choices
        self._head = {
            "id": new_id("cmpl-"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": serving.name(request.model),
        }
        self._prompt_tokens = sum(len(choice.request.prompt) for choice in choices[:: request.n or 1])

    def as_json(self, answers: list[Piece]) -> dict[str, Any]:
        """All of it at once."""
        if self._request.echo and self._request.max_tokens == 0:  # the engine generates at least one token
            answers = [Piece(answer.index, "", (), answer.prompt_logprobs, "length") for answer in answers]
        choices = [self._choice(answer, first=True) for answer in answers]
        return {**self._head, "choices": choices, "usage": usage(self._prompt_tokens, counted(answers))}

    async def events(self, generation: Generation) -> AsyncIterator[str]:
        """All of it piece by piece."""
        options = self._request.stream_options
        continuous = options is not None and options.include_usage and options.continuous_usage_stats
        lengths = [0] * len(self._choices)
        offsets = [0] * len(self._choices)
        async for piece in generation:
            is_first = not lengths[piece.index]
            lengths[piece.index] += len(piece.tokens)
            choice = self._choice(piece, is_first, offsets[piece.index])
            offsets[piece.index] += len(choice["text"])
            if choice["text"] or choice["finish_reason"] or choice["logprobs"]:
                now = {"usage": usage(self._prompt_tokens, sum(lengths)) if continuous else None} if options else {}
                yield event({**self._head, "choices": [choice], **now})
        if options is not None and options.include_usage:
            yield event({**self._head, "choices": [], "usage": usage(self._prompt_tokens, sum(lengths))})
        yield "data: [DONE]\n\n"

    def _choice(self, piece: Piece, first: bool, offset: int = 0) -> dict[str, Any]:
        prompt = self._choices[piece.index].request.prompt
        echoed = self._serving.decode(list(prompt)) if self._request.echo and first else ""
        tokens = (*piece.prompt_logprobs, *piece.tokens) if self._request.echo else piece.tokens
        choice: dict[str, Any] = {
            "index": piece.index,
            "text": echoed + piece.text,
            "logprobs": self._logprobs(tokens, offset) if self._request.logprobs is not None else None,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
        }
        if not self._request.stream:
            wanted = self._request.prompt_logprobs is not None
            choice["prompt_logprobs"] = prompt_logprobs(self._serving, piece.prompt_logprobs) if wanted else None
        if self._request.return_token_ids:
            choice["token_ids"] = [token.id for token in piece.tokens]
            choice["prompt_token_ids"] = list(prompt) if first else None
        return choice

    def _logprobs(self, tokens: tuple[Token, ...], offset: int) -> dict[str, Any]:
        texts = [self._serving.token(token.id)[0] for token in tokens]
        ends = itertools.accumulate((len(text) for text in texts), initial=offset)
        return {
            "text_offset": list(ends)[:-1],
            "tokens": texts,
            "token_logprobs": [None if token.logprob is None else finite(token.logprob) for token in tokens],
            "top_logprobs": [None if token.logprob is None else self._top(token) for token in tokens],
        }

    def _top(self, token: Token) -> dict[str, float]:
        """The likeliest tokens, and the chosen one if it is not among them."""
        every = {token.id: token.logprob or 0.0, **dict(token.top)}
        return {self._serving.token(number)[0]: finite(logprob) for number, logprob in every.items()}
