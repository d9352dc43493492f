"""ms-swift's agent formats: calls and results in a conversation, and how much the parts of an answer count."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from npukit.llm.chat.peers.data import BadTurns, table
from npukit.llm.chat.peers.tools import ToolFormat, parsed

Context = str | list[Any]  # text with {{QUERY}} and the like, or names of the tokenizer's tokens
Weighed = tuple[str, int]  # a part of an answer, and how much it counts
Turn = dict[str, Any]  # an answer's content may be a list of its parts, a result's is what is written


def with_calls(
    turns: Sequence[dict[str, str]],
    tool_format: ToolFormat | None,
    separator: Sequence[Context] | None,
    prompt: Sequence[Context],
) -> list[Turn]:
    """Alternating questions or results, and answers. Adjacent answers and calls become one answer of several parts."""
    joined: list[Turn] = []
    for role, neighbours in itertools.groupby(turns, key=lambda turn: turn["role"]):
        texts = [turn["content"] for turn in neighbours]
        if role in ("call", "result") and tool_format is None:
            raise BadTurns("calls functions, which this template does not write: set data.tool_format")
        before = joined[-1] if joined and joined[-1]["role"] == "assistant" else None
        if role == "user":
            joined.append({"role": "user", "content": "".join(texts)})
        elif role == "result":
            if before is None:
                raise BadTurns("has the result of a call that is missing")
            assert tool_format
            before["content"], contexts = _results(before["content"], texts, tool_format, separator, prompt)
            joined.append({"role": "result", "content": contexts})
        else:
            if role == "call":
                assert tool_format
                texts = [tool_format.write_calls([_call(text) for text in texts])]
            if before is None:
                joined.append({"role": "assistant", "content": texts if len(texts) > 1 else texts[0]})
            else:
                earlier = before["content"]
                before["content"] = [*(earlier if isinstance(earlier, list) else [earlier]), *texts]
    return joined


def _results(
    answer: Any,
    results: list[str],
    tool_format: ToolFormat,
    separator: Sequence[Context] | None,
    prompt: Sequence[Context],
) -> tuple[Any, list[Context]]:
    """The preceding answer, possibly with a word that announces results, and the text of the results."""
    words = tool_format.words
    if words and isinstance(answer, str) and words[0] in answer and words[1] in answer:
        if not answer.endswith(words[2]):
            answer += ("" if answer.endswith("\n") else "\n") + words[2]
        ended = [result if result.endswith("\n") else result + "\n" for result in results]
        return answer, [words[2].join(ended)]
    text = tool_format.write_results(results)
    if not tool_format.in_question:
        return answer, [text]
    if separator is None:
        raise BadTurns("has results, after which this template cannot continue")
    return answer, [*separator, *(_filled(context, text, tool_format.role) for context in prompt)]


def _filled(context: Context, text: str, role: str) -> Context:
    return context.replace("user", role).replace("{{QUERY}}", text) if isinstance(context, str) else context


def _call(text: str) -> dict[str, Any]:
    content = parsed(text)
    if not isinstance(content, dict) or "name" not in content:
        raise BadTurns("has a call that is not an object with a name in JSON")
    arguments = content.get("arguments")
    arguments = content.get("parameters") if arguments is None else arguments
    arguments = parsed(arguments) if isinstance(arguments, str) else arguments
    if arguments is None:
        raise BadTurns("has a call without arguments")
    return {"name": content["name"], "arguments": arguments}


def weights() -> list[str]:
    """The names of the weighting schemes for answers."""
    return sorted(table("tools")["weights"])


def weighed(text: str, names: Sequence[str]) -> list[Weighed]:
    """The parts of an answer, and how much each counts.

    >>> weighed("Thought: add\\nAction: sum", ["react"])
    [('Thought:', 1), (' add\\n', 1), ('Action:', 2), (' sum', 2)]
    """
    parts = [(text, 1)]
    for name in names:
        parts = [(some, had * own) for whole, had in parts for some, own in _by(whole, table("tools")["weights"][name])]
    return parts


def _by(text: str, table_: dict[str, Any]) -> list[Weighed]:
    expressions = table_.get("matches")
    if expressions:
        pieces = re.split(f"({'|'.join(expressions)})", text, flags=re.DOTALL)
        # Text between two matches may not match itself, but ms-swift examines each piece separately.
        weighed = [
            (piece, [own for key, own in expressions.items() if re.match(key, piece, re.DOTALL)]) for piece in pieces
        ]
        return [(piece, own[0] if own else 1) for piece, own in weighed if piece]
    first, *pieces = re.split(f"({'|'.join(map(re.escape, table_))})", text)
    parts = [(first, 1)]
    for key, content in zip(pieces[::2], pieces[1::2], strict=True):
        parts += [(key, table_[key][0]), (content, table_[key][1])]
    return [part for part in parts if part[0]]
