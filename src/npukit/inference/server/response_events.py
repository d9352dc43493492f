"""The events of a streamed response: items are announced, filled and closed, and every event has its number."""

from __future__ import annotations

from typing import Any

from npukit.inference.server.output_stream import event, new_id
from npukit.llm.chat.answer import Content, Part, Reasoning, ToolCall


def item_of(part: Part, status: str = "completed") -> dict[str, Any]:
    """A part of an answer as an item of a response."""
    if isinstance(part, ToolCall):
        call = {"call_id": new_id("call_"), "name": part.name, "arguments": part.arguments}
        return {"id": new_id("fc_"), "type": "function_call", "status": status, **call}
    if isinstance(part, Reasoning):
        content = [{"type": "reasoning_text", "text": part.text}]
        return {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": content, "status": status}
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [_text_part(part.text)],
    }


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class ResponseEvents:
    """Makes the events for the parts of one answer.

    >>> events = ResponseEvents()
    >>> [*events.of(Content("Hi")), *events.close()]
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._number = 0
        self._open: dict[str, Any] | None = None

    def make(self, name: str, /, **fields: Any) -> str:
        """One event."""
        number, self._number = self._number, self._number + 1
        return event({"type": name, "sequence_number": number, **fields}, name)

    def of(self, part: Part) -> list[str]:
        """The events of one more part."""
        if isinstance(part, ToolCall):
            return [*self.close(), *self._call(part)]
        kind = "message" if isinstance(part, Content) else "reasoning"
        events = []
        if self._open is None or self._open["type"] != kind:
            events = [*self.close(), *self._start(part)]
        assert self._open is not None
        self._open["content"][0]["text"] += part.text
        name = "response.output_text.delta" if kind == "message" else "response.reasoning_text.delta"
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        return [*events, self.make(name, **self._where(), content_index=0, delta=part.text, **logprobs)]

    def close(self) -> list[str]:
        """The end of the item that is open."""
        if (item := self._open) is None:
            return []
        where, part = self._where(), item["content"][0]
        item["status"] = "completed"
        is_message = item["type"] == "message"
        name = "response.output_text.done" if is_message else "response.reasoning_text.done"
        logprobs: dict[str, Any] = {"logprobs": []} if is_message else {}
        events = [self.make(name, **where, content_index=0, text=part["text"], **logprobs)]
        events.append(self.make("response.content_part.done", **where, content_index=0, part=part))
        events.append(self.make("response.output_item.done", output_index=where["output_index"], item=item))
        self._open = None
        return events

    def _start(self, part: Content | Reasoning) -> list[str]:
        empty = item_of(type(part)(""), "in_progress")
        self.items.append(empty)
        self._open = empty
        place = len(self.items) - 1
        return [
            self.make("response.output_item.added", output_index=place, item={**empty, "content": []}),
            self.make("response.content_part.added", **self._where(), content_index=0, part=dict(empty["content"][0])),
        ]

    def _call(self, part: ToolCall) -> list[str]:
        item = item_of(part)
        self.items.append(item)
        place = len(self.items) - 1
        where = {"output_index": place, "item_id": item["id"]}
        started = {**item, "arguments": "", "status": "in_progress"}
        done = {"name": part.name, "arguments": part.arguments}
        return [
            self.make("response.output_item.added", output_index=place, item=started),
            self.make("response.function_call_arguments.delta", **where, delta=part.arguments),
            self.make("response.function_call_arguments.done", **where, **done),
            self.make("response.output_item.done", output_index=place, item=item),
        ]

    def _where(self) -> dict[str, Any]:
        assert self._open is not None
        return {"output_index": len(self.items) - 1, "item_id": self._open["id"]}
