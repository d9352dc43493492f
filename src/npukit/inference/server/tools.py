"""Tool calls that the client requires: the answer is constrained to JSON, whatever the model's own format is."""

from __future__ import annotations

import json

from npukit.inference.grammar import Constraint
from npukit.inference.server.schema import ChatRequest, NamedTool
from npukit.inference.server.serving import Serving
from npukit.llm.chat.answer import Content, Part, ToolCall

ANY_ARGUMENTS = {"type": "object", "properties": {}}


def demanded(request: ChatRequest) -> bool:
    """Whether the answer must be a tool call."""
    return request.tool_choice == "required" or isinstance(request.tool_choice, NamedTool)


def constraint_of_tools(serving: Serving, request: ChatRequest) -> Constraint:
    """The arguments of the named tool, or a list of calls of any of them; call it in a thread."""
    tools = [(tool.function.name, tool.function.parameters or ANY_ARGUMENTS) for tool in request.tools or ()]
    if isinstance(request.tool_choice, NamedTool):
        return serving.grammars().json(dict(tools)[request.tool_choice.function.name])
    return serving.grammars().calls(tools, max_calls=1 if request.parallel_tool_calls is False else 8)


class DemandedCalls:
    """Reads an answer that must be a call; it is a parser as llm.chat's are."""

    def __init__(self, request: ChatRequest) -> None:
        self._name = request.tool_choice.function.name if isinstance(request.tool_choice, NamedTool) else None
        self._text = ""

    def feed(self, text: str) -> list[Part]:
        """Nothing yet, because calls are returned when they are complete."""
        self._text += text
        return []

    def end(self) -> list[Part]:
        """The calls; an answer that was cut before it was valid JSON is returned as text."""
        if self._name is not None:
            return [ToolCall(self._name, self._text)]
        try:
            calls = json.loads(self._text)
            return [ToolCall(call["name"], json.dumps(call["arguments"], ensure_ascii=False)) for call in calls]
        except (ValueError, KeyError, TypeError):
            return [Content(self._text)] if self._text else []
