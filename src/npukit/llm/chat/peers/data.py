"""The tables of templates, and what the writers for both tools share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from npukit.facts.data import load_yaml

IGNORED = -100
Tool = Literal["llama_factory", "ms_swift"]
Labelled = tuple[list[int], list[int]]  # ids, and labels in which -100 does not count


class BadTurns(Exception):
    """Why a template cannot write a conversation, worded to follow "this row"."""


def table(tool: str) -> Mapping[str, Any]:
    """The facts about a tool's templates, or about how both write tools.

    >>> table("llama_factory")["templates"]["qwen3"]["stop_words"]
    ['<|im_end|>']
    """
    content: Mapping[str, Any] = load_yaml(Path(__file__).with_name(f"{tool}.yaml"))
    return content


def parts_of(turns: list[dict[str, str]]) -> tuple[str | None, str | None, list[dict[str, str]]]:
    """The tools and the system message, each None if missing, and alternating questions and answers."""
    tools = system = None
    if turns and turns[0]["role"] == "tools":
        tools, turns = turns[0]["content"], turns[1:]
    if turns and turns[0]["role"] == "system":
        system, turns = turns[0]["content"], turns[1:]
    return tools, system, turns
