"""/v1/chat/completions: conversations, with tools and reasoning if the model's chat template supports them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from npukit.inference.engine.request import Token
from npukit.inference.pictures import Pictures, split_media
from npukit.inference.server.body import make_router
from npukit.inference.server.choice_request import constraint_of, make_choices
from npukit.inference.server.errors import bad_request
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
from npukit.inference.server.schema import ChatRequest
from npukit.inference.server.serving import Serving
from npukit.inference.server.tools import DemandedCalls, constraint_of_tools, demanded
from npukit.llm.chat.answer import Content, Part, Reasoning, ToolCall
from npukit.llm.chat.chat import Prompt
from npukit.llm.chat.messages import prepared
from npukit.llm.data.media import kind_of_part
from npukit.llm.medium import MediaItem


class Parser(Protocol):
    """Splits an answer into text, reasoning and tool calls while it is generated."""

    def feed(self, text: str) -> list[Part]: ...
    def end(self) -> list[Part]: ...


class PlainText:
    """The parser of an answer that is only text, for example JSON with a schema."""

    def feed(self, text: str) -> list[Part]:
        """The text."""
        return [Content(text)] if text else []

    def end(self) -> list[Part]:
        """Nothing is held back."""
        return []


def routes(serving: Serving) -> APIRouter:
    """The route of /v1/chat/completions."""
    router = make_router()

    @router.post("/v1/chat/completions")
    async def create(request: ChatRequest, raw_request: Request) -> Response:
        pictures = has_pictures(request.messages)
        conversation = await serving.aside(raw_request, lambda: ChatCompletion.read(serving, request), pictures)
        generation = await Generation.start(serving, conversation.choices)
        if request.stream:
            return EventStream(generation, conversation.events(generation))
        async with generation:
            answers = await while_connected(raw_request, whole(generation, len(conversation.choices)))
        return JSONResponse(conversation.as_json(answers))

    return router


@dataclass(frozen=True)
class ChatCompletion:
    """One request of /v1/chat/completions and its response."""

    serving: Serving
    request: ChatRequest
    prompt: Prompt
    choices: list[ChoiceRequest]
    head: dict[str, Any]

    @classmethod
    def read(cls, serving: Serving, request: ChatRequest) -> ChatCompletion:
        """Render and tokenise a conversation; call it in a thread."""
        serving.adapter(request.model)
        offered = () if request.tool_choice == "none" else request.tools or ()
        messages, sources = split_media(request.messages)
        pictures = _pictures(serving, request, sources) if sources else None
        prompt = serving.chat.prompt(
            messages,
            tools=[tool.model_dump(exclude_none=True) for tool in offered] or None,
            add_generation_prompt=request.add_generation_prompt is not False,
            continue_final_message=bool(request.continue_final_message),
            template_kwargs=_variables(serving, request),
            max_characters=serving.max_characters if request.truncate_prompt_tokens is None else None,
            media=pictures.written if pictures else None,
        )
        constraint = constraint_of_tools(serving, request) if demanded(request) else constraint_of(serving, request)
        logprobs = (request.top_logprobs or 0) if request.logprobs else None
        choices = make_choices(
            serving, request, prompt.ids, request.longest, logprobs, constraint, serving.chat.marker_ids
        )
        if pictures is not None:  # decoded last, when everything else has been checked
            media = pictures.read(prompt.ids)
            choices = [replace(choice, request=replace(choice.request, media=media)) for choice in choices]
        head = {"id": new_id("chatcmpl-"), "created": int(time.time()), "model": serving.name(request.model)}
        return cls(serving, request, prompt, choices, head)

    def parser(self) -> Parser:
        """A new parser for an answer to this request."""
        if demanded(self.request):
            return DemandedCalls(self.request)
        if self.choices[0].request.grammar is not None:
            return PlainText()
        return self.serving.chat.parser(self.prompt)

    def as_json(self, answers: list[Piece]) -> dict[str, Any]:
        """All of it at once."""
        wanted = self.request.prompt_logprobs is not None
        return {
            **self.head,
            "object": "chat.completion",
            "choices": [self._choice(answer) for answer in answers],
            "usage": usage(len(self.choices[0].request.prompt), counted(answers)),
            "prompt_logprobs": prompt_logprobs(self.serving, answers[0].prompt_logprobs) if wanted else None,
        }

    def _choice(self, answer: Piece) -> dict[str, Any]:
        parser = self.parser()
        parts = [*parser.feed(answer.text), *parser.end()]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        content = "".join(part.text for part in parts if isinstance(part, Content))
        message_content = None if calls and not content else self._echoed() + content
        message: dict[str, Any] = {"role": "assistant", "content": message_content, "refusal": None}
        if self.request.include_reasoning is not False:
            reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
            message |= {"reasoning_content": reasoning} if reasoning else {}
        if calls:
            message["tool_calls"] = [_call(call) for call in calls]
        choice = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.tokens),
            "finish_reason": _finish(answer, bool(calls)),
            "stop_reason": answer.stop_reason,
        }
        if self.request.return_token_ids:
            choice["token_ids"] = [token.id for token in answer.tokens]
        return choice

    def _echoed(self) -> str:
        """The end of the conversation, if the client wants it back before the answer."""
        last = self.request.messages[-1]
        is_wanted = self.request.echo and last.get("role") == "assistant"
        return str(prepared([last])[0]["content"]) if is_wanted else ""

    async def events(self, generation: Generation) -> AsyncIterator[str]:
        """All of it piece by piece."""
        streams = [ChoiceStream(self, index) for index in range(len(self.choices))]
        options = self.request.stream_options
        for stream in streams:
            yield self._event([stream.start(self._echoed())], 0)
        async for piece in generation:
            for choice in streams[piece.index].read(piece):
                yield self._event([choice], sum(stream.length for stream in streams))
        if options is not None and options.include_usage:
            yield self._event([], sum(stream.length for stream in streams))
        yield "data: [DONE]\n\n"

    def _event(self, choices: list[dict[str, Any]], length: int) -> str:
        chunk = {**self.head, "object": "chat.completion.chunk", "choices": choices}
        if wanted := self.request.stream_options:
            counts = wanted.include_usage and (wanted.continuous_usage_stats or not choices)
            chunk["usage"] = usage(len(self.choices[0].request.prompt), length) if counts else None
        return event(chunk)

    def _logprobs(self, tokens: tuple[Token, ...]) -> dict[str, Any] | None:
        if not self.request.logprobs:
            return None
        return {"content": [self._logprob(token) for token in tokens], "refusal": None}

    def _logprob(self, token: Token) -> dict[str, Any]:
        top = [self._entry(number, logprob) for number, logprob in token.top]
        return {**self._entry(token.id, token.logprob or 0.0), "top_logprobs": top}

    def _entry(self, number: int, logprob: float) -> dict[str, Any]:
        text, data = self.serving.token(number)
        return {"token": text, "logprob": finite(logprob), "bytes": list(data)}


class ChoiceStream:
    """One answer of a stream: parts become deltas, and the end comes with the last of them."""

    def __init__(self, conversation: ChatCompletion, index: int) -> None:
        self.length = 0
        self._conversation, self._index = conversation, index
        self._parser = conversation.parser()
        self._calls = 0

    def start(self, echoed: str) -> dict[str, Any]:
        """The first delta, with the role."""
        return self._delta({"role": "assistant", "content": echoed})

    def read(self, piece: Piece) -> list[dict[str, Any]]:
        """The deltas of a piece."""
        self.length += len(piece.tokens)
        parts = self._parser.feed(piece.text) + (self._parser.end() if piece.finish_reason else [])
        deltas = [delta for part in parts if (delta := self._of(part))]
        if not deltas and (piece.finish_reason or self._conversation.request.logprobs):
            deltas = [{}]
        choices = [self._delta(delta) for delta in deltas]
        if choices:
            choices[-1]["logprobs"] = self._conversation._logprobs(piece.tokens)
        if piece.finish_reason:
            choices[-1] |= {"finish_reason": _finish(piece, bool(self._calls)), "stop_reason": piece.stop_reason}
        return choices

    def _of(self, part: Part) -> dict[str, Any] | None:
        if isinstance(part, Content):
            return {"content": part.text}
        if isinstance(part, Reasoning):
            return (
                {"reasoning_content": part.text} if self._conversation.request.include_reasoning is not False else None
            )
        self._calls += 1
        return {"tool_calls": [{"index": self._calls - 1, **_call(part)}]}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}


def has_pictures(messages: list[dict[str, Any]]) -> bool:
    """Whether any message has an image or a video."""
    contents = (message.get("content") for message in messages)
    return any(kind_of_part(part) for content in contents if isinstance(content, list) for part in content)


def _pictures(serving: Serving, request: ChatRequest, media: list[MediaItem]) -> Pictures:
    if len(media) > serving.media.most:
        raise bad_request(
            f"This request has {len(media)} images or videos, and the server takes {serving.media.most} at most "
            "(--max-images).",
            "messages",
        )
    if request.truncate_prompt_tokens is not None:
        raise bad_request("A conversation with images or videos cannot be truncated.", "truncate_prompt_tokens")
    return Pictures(serving.images, media, serving.media.read)


def _variables(serving: Serving, request: ChatRequest) -> dict[str, Any]:
    """What the client sets in the chat template; chat_template_kwargs wins over the fields of the request."""
    thinking = serving.enable_thinking if request.enable_thinking is None else request.enable_thinking
    if request.reasoning_effort == "none" and request.enable_thinking is None:
        thinking = False
    fields = {"enable_thinking": thinking, "reasoning_effort": request.reasoning_effort}
    given = {name: value for name, value in fields.items() if value is not None}
    return given | (request.chat_template_kwargs or {})


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": new_id("call_"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish(piece: Piece, has_calls: bool) -> str | None:
    return "tool_calls" if has_calls and piece.finish_reason == "stop" else piece.finish_reason
