"""Tools for models whose chat template does not support them: the conversation describes them as for Hermes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

DESCRIPTION = """You can call functions. These are described in JSON, one in a line:
{tools}
To call one, write its name and its arguments as JSON between these marks, and then stop:
<tool_call>
{{"name": "the function's name", "arguments": {{"argument": "value"}}}}
</tool_call>
What it returns comes back between <tool_response> and </tool_response>."""


def described(
    tools: Sequence[Mapping[str, Any]], messages: Sequence[dict[str, Any]], role: str
) -> list[dict[str, Any]]:
    """The messages with a description of the tools in the first one of this role, `system` or `user`.

    >>> described([tool], [{"role": "user", "content": "Hi"}], "system")[0]["role"]
    'system'
    """
    text = DESCRIPTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    with_tools = [dict(message) for message in messages]
    first = next((message for message in with_tools if message["role"] == role), None)
    if first is None:
        return [{"role": role, "content": text}, *with_tools]
    first["content"] = f"{first['content']}\n\n{text}" if role == "system" else f"{text}\n\n{first['content']}"
    return with_tools


def written_out(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls and their results as text of the assistant and the user, which every template supports.

    >>> written_out([{"role": "tool", "content": "21 °C"}])
    [{'role': 'user', 'content': '<tool_response>\\n21 °C\\n</tool_response>'}]
    """
    plain: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            text = f"<tool_response>\n{message['content']}\n</tool_response>"
            if plain and plain[-1].get("role") == "user" and plain[-1]["content"].endswith("</tool_response>"):
                plain[-1] = {"role": "user", "content": f"{plain[-1]['content']}\n{text}"}
            else:
                plain.append({"role": "user", "content": text})
        elif calls := message.get("tool_calls"):
            written = [f"<tool_call>\n{_call(call['function'])}\n</tool_call>" for call in calls]
            plain.append({"role": "assistant", "content": "\n".join(filter(None, [message["content"], *written]))})
        else:
            plain.append(message)
    return plain


def _call(function: Mapping[str, Any]) -> str:
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
