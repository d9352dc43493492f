"""/v1/responses: OpenAI's newer API, as far as text and functions go. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, ValidationError
from starlette.responses import JSONResponse, Response

from npukit.inference.server.body import make_router
from npukit.inference.server.chat import ChatCompletion, has_pictures
from npukit.inference.server.errors import bad_request, invalid_fields
from npukit.inference.server.generate import Generation, Piece, whole
from npukit.inference.server.output_stream import EventStream, new_id, while_connected
from npukit.inference.server.response_events import ResponseEvents, item_of
from npukit.inference.server.schema import ChatRequest, Count, FunctionTool, Lenient, Messages
from npukit.inference.server.serving import Serving
from npukit.llm.chat.answer import Content, Part, Reasoning
from npukit.llm.data.media import kind_of_part

ROLES = {"developer": "system"}
TEXT_PARTS = ("input_text", "output_text", "text")


class ResponseTool(FunctionTool):
    """A function, in the flat form of this API."""

    type: Literal["function"]


class ToolChoice(Lenient):
    """A function that must be called."""

    type: Literal["function"]
    name: str


class TextFormat(Lenient):
    """The form of the answer, in the flat form of this API."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Lenient):
    """Options of the answer's text."""

    format: TextFormat | None = None


class ReasoningOptions(Lenient):
    """How much to think."""

    effort: str | None = None


class ResponseRequest(Lenient):
    """/v1/responses"""

    model: str | None = None
    input: str | Messages
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    stream: bool | None = False
    tools: Annotated[list[ResponseTool], Field(fail_fast=True, max_length=1024)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    user: str | None = None


def routes(serving: Serving) -> APIRouter:
    """The route of /v1/responses."""
    router = make_router()

    @router.post("/v1/responses")
    async def create(request: ResponseRequest, raw_request: Request) -> Response:
        if request.previous_response_id or request.background:
            raise bad_request("Responses are not stored here: send the whole conversation, in the foreground.")
        chat = as_chat(request)
        pictures = has_pictures(chat.messages)
        conversation = await serving.aside(raw_request, lambda: ChatCompletion.read(serving, chat), pictures)
        answer = ResponseAnswer(request, conversation)
        generation = await Generation.start(serving, conversation.choices)
        if request.stream:
            return EventStream(generation, answer.events(generation))
        async with generation:
            pieces = await while_connected(raw_request, whole(generation, 1))
        return JSONResponse(answer.as_json(pieces[0]))

    return router


def as_chat(request: ResponseRequest) -> ChatRequest:
    """The same tool choice in the form of /v1/chat/completions."""
    messages = [{"role": "system", "content": request.instructions}] if request.instructions else []
    messages += (
        [{"role": "user", "content": request.input}] if isinstance(request.input, str) else _messages(request.input)
    )
    if not messages:
        raise bad_request("There is no input.", "input")
    given: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "max_completion_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": request.tool_choice,
        "reasoning_effort": request.reasoning and request.reasoning.effort,
    }
    if request.tools:
        given["tools"] = [{"type": "function", "function": tool.model_dump(exclude={"type"})} for tool in request.tools]
    if isinstance(request.tool_choice, ToolChoice):
        given["tool_choice"] = {"type": "function", "function": {"name": request.tool_choice.name}}
    if request.text and request.text.format:
        shape = request.text.format
        given["response_format"] = {"type": shape.type}
        if shape.type == "json_schema":
            given["response_format"]["json_schema"] = {"name": shape.name or "", "schema": shape.schema_}
    try:
        return ChatRequest.model_validate(given)
    except ValidationError as error:
        raise invalid_fields(error.errors(), given) from error


def _messages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages of a list of items; calls and their results belong to the conversation, reasoning does not."""
    messages: list[dict[str, Any]] = []
    for number, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "message":
            role = item.get("role")
            messages.append({"role": ROLES.get(str(role), role), "content": _content(item.get("content"), number)})
        elif kind == "function_call":
            call = {"id": item.get("call_id"), "type": "function"}
            call["function"] = {"name": item.get("name"), "arguments": item.get("arguments")}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        elif kind == "function_call_output":
            output = _text(item.get("output"), number)
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            raise bad_request(f"input[{number}]: items of type {kind!r} are not supported.", "input")
    return messages


def _content(content: Any, number: int) -> Any:
    """Text, or parts of text, images and videos."""
    if not isinstance(content, list) or not any(map(kind_of_part, content)):
        return _text(content, number)
    return [part if kind_of_part(part) else {"type": "text", "text": _text([part], number)} for part in content]


def _text(content: Any, number: int) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else [None]
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise bad_request(f"input[{number}]: only text, images and videos are supported.", "input")
    return "".join(part["text"] for part in parts)


class ResponseAnswer:
    """The answer to one request of /v1/responses."""

    def __init__(self, request: ResponseRequest, conversation: ChatCompletion) -> None:
        self._request, self._conversation = request, conversation
        self._id, self._created = new_id("resp_"), int(time.time())

    def as_json(self, piece: Piece) -> dict[str, Any]:
        """All of it at once."""
        parser = self._conversation.parser()
        items = [item_of(part) for part in joined([*parser.feed(piece.text), *parser.end()])]
        status = "incomplete" if piece.finish_reason == "length" else "completed"
        return self.state(status, items, len(piece.tokens))

    async def events(self, generation: Generation) -> AsyncIterator[str]:
        """All of it piece by piece; there is one answer only."""
        events, parser = ResponseEvents(), self._conversation.parser()
        for name in ("response.created", "response.in_progress"):
            yield events.make(name, response=self.state("in_progress", [], None))
        length, status = 0, "completed"
        async for piece in generation:
            length += len(piece.tokens)
            status = "incomplete" if piece.finish_reason == "length" else status
            for part in parser.feed(piece.text) + (parser.end() if piece.finish_reason else []):
                for event in events.of(part):
                    yield event
        for event in events.close():
            yield event
        yield events.make(f"response.{status}", response=self.state(status, events.items, length))

    def state(self, status: str, output: list[dict[str, Any]], length: int | None) -> dict[str, Any]:
        """The response object as it is now."""
        request, prompt = self._request, len(self._conversation.prompt.ids)
        sampling = self._conversation.choices[0].request.sampling
        choice = request.tool_choice
        shape = request.text.format if request.text and request.text.format else TextFormat()
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": self._conversation.head["model"],
            "output": output,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning and request.reasoning.effort, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": shape.model_dump(exclude_none=True, by_alias=True)},
            "tool_choice": choice.model_dump() if isinstance(choice, ToolChoice) else choice or "auto",
            "tools": [{"strict": False, "parameters": None, **tool.model_dump()} for tool in request.tools or ()],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            **({} if length is None else {"usage": _usage(prompt, length)}),
            **({"user": request.user} if request.user else {}),
            "metadata": request.metadata or {},
        }


def _usage(prompt: int, answer: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + answer,
    }


def joined(parts: list[Part]) -> list[Part]:
    """Neighbouring text as one part."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + part.text)
        else:
            result.append(part)
    return result
