"""Fields of requests that this server does not know.

Those that ask for another answer are refused; the others are ignored, and the log names each of them once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from npukit.report.terminal import say

MAX_NAMES = 100  # that the log has; a client may invent any number
LONGEST_NAME = 60  # characters

# Fields of OpenAI's, vLLM's and other servers' APIs that change what is answered, and what this server has instead.
REFUSED = {
    "allowed_token_ids": "",
    "audio": "",
    "bad_words": "",
    "chat_template": "npukit serve --chat-template",
    "conversation": "input",
    "documents": "messages",
    "function_call": "tool_choice",
    "functions": "tools",
    "guided_choice": "structured_outputs",
    "guided_grammar": "structured_outputs",
    "guided_json": "structured_outputs",
    "guided_regex": "structured_outputs",
    "logits_processors": "",
    "max_new_tokens": "max_tokens",
    "modalities": "",
    "prompt": "messages or input",
    "prompt_embeds": "",
    "stop_sequences": "stop",
    "structural_tag": "structured_outputs",
    "thinking_token_budget": "",
    "typical_p": "",
    "web_search_options": "tools",
}
NO_WISH: tuple[Any, ...] = (None, False, "", [], {}, ["text"])

_named: set[tuple[str, str]] = set()


def check_unknown(kind: str, known: Iterable[str], given: Mapping[Any, Any]) -> None:
    """Name the given fields that are not known in the log; a ValueError for one that would change the answer.

    >>> check_unknown("ChatRequest", {"messages"}, {"messages": [], "guided_json": {"type": "object"}})
    Traceback (most recent call last):
    ValueError: guided_json is not supported: use structured_outputs
    """
    unknown = [name for name in given if name not in known]
    for name in unknown:
        if name in REFUSED and given[name] not in NO_WISH:
            instead = REFUSED[name]
            raise ValueError(f"{name} is not supported" + (f": use {instead}" if instead else ""))
    shortened = (str(name)[:LONGEST_NAME] for name in unknown)
    new = [name for name in shortened if (kind, name) not in _named][: MAX_NAMES - len(_named)]
    if new:
        _named.update((kind, name) for name in new)
        with contextlib.suppress(OSError):  # a log on a full disk is no reason to refuse the request
            say(f"a {kind} has unknown fields, which are ignored: {', '.join(map(repr, new))}")
