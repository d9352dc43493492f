"""Convert messages from clients into the form that chat templates expect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.chat.peers.data import BadTurns
from npukit.llm.chat.peers.tools import full, parsed, tools_of
from npukit.llm.medium import Kind

Message = Mapping[str, Any]  # as in OpenAI's API
ROLES = ("system", "developer", "user", "assistant", "tool")


class BadConversation(NpukitError):
    """A conversation that cannot be answered: its messages are malformed, or the chat template rejects them."""


@dataclass(frozen=True)
class WrittenMedia:
    """How images and videos of a conversation are written: `markers` represent them by kind, and `texts` contain, in
    the order of the conversation, what part of each marker to replace, and by what.
    """

    markers: Mapping[Kind, str]
    texts: tuple[tuple[str, str], ...]


class TooLong(BadConversation):
    """A conversation that cannot fit into the model's context, which is known before it is tokenised."""


def prepared(
    messages: Sequence[Message], system: str | None = None, markers: Mapping[Kind, str] | None = None
) -> list[dict[str, Any]]:
    """Messages for a template: text instead of parts, arguments of calls as objects, and `system` first if none is
    given.

    With `markers`, parts of these kinds are allowed and replaced by them. Empty markers keep messages with such parts
    unchanged, for templates that support them.

    >>> prepared([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], system="Be brief.")
    [{'role': 'system', 'content': 'Be brief.'}, {'role': 'user', 'content': 'Hi'}]
    """
    if not messages:
        raise BadConversation("There are no messages: give at least one.")
    ready = [_message(number, message, markers or {}) for number, message in enumerate(messages)]
    if system and ready[0]["role"] != "system":
        ready.insert(0, {"role": "system", "content": system})
    return ready


def _message(number: int, message: Message, markers: Mapping[Kind, str]) -> dict[str, Any]:
    where = f"messages[{number}]"
    if not isinstance(message, Mapping) or message.get("role") not in ROLES:
        raise BadConversation(f"{where} must be an object whose role is one of {', '.join(ROLES)}.")
    ready = {key: value for key, value in message.items() if value is not None}
    if ready["role"] == "developer":  # OpenAI's newer name
        ready["role"] = "system"
    ready["content"] = _content(where, ready.get("content", ""), markers)
    if calls := ready.get("tool_calls"):
        if not isinstance(calls, list):
            raise BadConversation(f"{where}.tool_calls must be a list.")
        ready["tool_calls"] = [_call(where, call) for call in calls]
    elif "content" not in message:
        raise BadConversation(f"{where} has no content.")
    return ready


def _content(where: str, content: Any, markers: Mapping[Kind, str]) -> Any:
    if not markers or not isinstance(content, list):
        return _text(where, content)
    kinds = [next((kind for kind in markers if part == {"type": kind}), None) for part in content]
    texts = [markers[kind] if kind else _text(where, [part]) for kind, part in zip(kinds, content, strict=True)]
    if all(markers.values()) or not any(kinds):
        return "".join(texts)  # for templates that support parts
    return [
        part if kind else {"type": "text", "text": text} for part, kind, text in zip(content, kinds, texts, strict=True)
    ]


def _text(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadConversation(f"{where}.content must be text or a list of parts.")
    for part in content:
        if not isinstance(part, Mapping):
            raise BadConversation(f"{where}.content has a part that is not an object with a type.")
        if not isinstance(part.get("text"), str):
            kind = part.get("type")
            text = "its text is missing" if kind == "text" else "only text is supported"
            raise BadConversation(f"{where}.content has a part of type {kind}: {text}.")
    return "\n".join(part["text"] for part in content)


def _call(where: str, call: Any) -> dict[str, Any]:
    """Clients send arguments as JSON text, but templates serialise them themselves."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadConversation(f"{where}.tool_calls must have a function with a name.")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            raise BadConversation(f"{where}.tool_calls: the arguments of {function['name']} are not JSON.") from None
    return {**call, "type": "function", "function": {**function, "arguments": arguments}}


def as_messages(turns: Sequence[Mapping[str, str]]) -> tuple[list[Any] | None, list[dict[str, Any]]]:
    """The tools of a row (None if it has none), and its turns as messages with calls; raises BadTurns.

    >>> as_messages([{"role": "call", "content": '{"name": "add", "arguments": {}}'}])[1][0]["tool_calls"]
    [{'type': 'function', 'function': {'name': 'add', 'arguments': {}}}]
    """
    tools: list[Any] | None = None
    messages: list[dict[str, Any]] = []
    for turn in turns:
        if turn["role"] == "tools":
            tools = [full(tool) for tool in tools_of(turn["content"])] or None
        elif turn["role"] == "result":
            messages.append({"role": "tool", "content": turn["content"]})
        elif turn["role"] == "call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            content = parsed(turn["content"])
            calls = messages[-1].setdefault("tool_calls", [])
            calls += [_trained_call(call) for call in (content if isinstance(content, list) else [content])]
        else:
            messages.append({**turn})
    return tools, messages


def _trained_call(call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise BadTurns("has a call that is not an object with a name in JSON")
    arguments = call.get("arguments", {})
    arguments = parsed(arguments) if isinstance(arguments, str) else arguments
    return {"type": "function", "function": {"name": call["name"], "arguments": arguments}}
