"""The turns of a conversation, whatever a data set calls them.

Besides system, user and assistant, a turn may be a `call` of a function in JSON, or the `result` of one. The available
tools are in a turn `tools` before all others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from npukit.llm.chat.render import Turn
from npukit.llm.data.row import BadRow, Conversation, Layout, kind_of, string, turn_text

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "function_call": "call",
    "tool_call": "call",
    "observation": "result",
    "observations": "result",
    "tool": "result",
    "tool_response": "result",
    "function": "result",
    "function_response": "result",
}
# Roles that may follow a turn, the usual one first.
NEXT = {
    "user": ("assistant", "call"),
    "result": ("assistant", "call", "result"),
    "assistant": ("user", "call", "result"),
    "call": ("user", "call", "result"),
}


def turns_of(messages: Any, layout: Layout) -> Conversation:
    """The turns of a list of messages, with our names of the roles."""
    if not isinstance(messages, list):
        raise BadRow(f"has {kind_of(messages)} instead of a list of turns")
    if not messages:
        raise BadRow("has an empty conversation")
    turns: Conversation = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            raise BadRow(f"has {kind_of(message)} as turn {number}, not an object with role and content")
        role_key = layout.role_key or ("role" if "role" in message else "from")
        content_key = layout.content_key or ("content" if "content" in message else "value")
        role = message.get(role_key)
        known = ROLES | layout.roles
        if not isinstance(role, str) or role not in known:
            raise BadRow(f"has the role {role!r} in turn {number}; roles are {', '.join(sorted(known))}")
        for name in ("loss", "weight", "loss_weight"):
            if known[role] == "assistant" and message.get(name) not in (None, True):
                raise BadRow(f"sets {name} for turn {number}, which is not supported")
        calls = message.get("tool_calls") or ()
        if not calls or message.get(content_key):
            turns.append(turn(known[role], _content(known[role], message, content_key, number, layout)))
        turns += [turn("call", _call(call, number)) for call in calls]
    return turns


def tools_turn(tools: Any) -> list[Turn]:
    """The turn that lists the tools, if there are any."""
    if tools is None or tools == "":
        return []
    if not isinstance(tools, (str, list, dict)):
        raise BadRow(f"has {kind_of(tools)} as tools, not a list of them")
    return [turn("tools", tools if isinstance(tools, str) else json.dumps(tools, ensure_ascii=False))]


def _call(call: Any, number: int) -> str:
    """A call in the format of OpenAI's API."""
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRow(f"has a call without a function's name in turn {number}")
    written = {"name": function["name"], "arguments": function.get("arguments", {})}
    return json.dumps(written, ensure_ascii=False)


def _content(role: str, message: dict[str, Any], key: str, number: int, layout: Layout) -> str:
    content = message.get(key)
    if role == "result" and content == "":
        return ""
    if role in ("call", "result") and isinstance(content, dict):
        return json.dumps(content, ensure_ascii=False)
    try:
        if isinstance(content, list):
            return "".join(_part_text(part, number) for part in content)
        return turn_text(message, key, layout)
    except BadRow as error:
        raise BadRow(f"{error} in turn {number}") from None


def _part_text(part: Any, number: int) -> str:
    """The text of a content part, in the format of OpenAI's API or of LLaMA-Factory's v1."""
    if isinstance(part, dict) and "text" in part:
        return string(part, "text")
    if isinstance(part, dict) and part.get("type") == "text":
        return string(part, "value")
    kind = part.get("type", "something else") if isinstance(part, dict) else kind_of(part)
    raise BadRow(f"has {kind} in turn {number}; only text is supported")


def history_of(history: Any) -> Conversation:
    """The turns of earlier questions and answers, given as pairs."""
    if history is None or history == "":
        return []
    if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
        raise BadRow("has a history that is not a list of [question, answer]")
    turns = []
    for question, answer in history:
        turns.append(turn("user", string({"question of the history": question}, "question of the history")))
        turns.append(turn("assistant", string({"answer of the history": answer}, "answer of the history")))
    return turns


def check_order(turns: Iterable[Turn]) -> None:
    """Check the order: optional tools and system message, then questions and answers in turn, ending with an answer."""
    roles = [turn["role"] for turn in turns]
    if not {"assistant", "call"} & set(roles):
        raise BadRow("has no answer (no assistant turn)")
    allowed: tuple[str, ...] = ("user",)
    for number, role in enumerate(roles, 1):
        if roles[:number] in (["tools"], ["system"], ["tools", "system"]):
            continue
        if role not in allowed:
            raise BadRow(f"has roles in the wrong order: turn {number} is {role}, not {allowed[0]}")
        allowed = NEXT[role]
    if roles[-1] not in ("assistant", "call"):
        raise BadRow("ends with a question that has no answer")


def turn(role: str, content: str) -> Turn:
    """Create a turn."""
    return {"role": role, "content": content}
