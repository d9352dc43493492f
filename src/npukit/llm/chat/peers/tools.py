"""How tools, calls and results are written: Jinja in tools.yaml, with one format per kind of model."""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from npukit.llm.chat.peers.data import BadTurns, Tool, table

if TYPE_CHECKING:
    import jinja2

DESCRIPTIONS = ("description", "description_for_model")
REACT_WORDS = ("Action:", "Action Input:", "Observation:")


@dataclass(frozen=True)
class ToolFormat:
    """One format. `words` introduce calls in plain-text answers; None if the format has none.

    >>> format_named("llama_factory", "qwen").write_calls([{"name": "add", "arguments": {"a": 1}}])
    '<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>'
    """

    tools: str
    calls: str
    always: bool = False
    question: str = "{{ question }}"
    results: str = ""
    in_question: bool = False
    role: str = "user"  # the template's name for the role of results, instead of "user"
    words: Sequence[str] | None = REACT_WORDS

    def write_tools(self, tools: Sequence[Any], system: str | None = None, raw: str = "") -> str:
        """The text that describes the tools to the model."""
        today = date.today().strftime("%d %b %Y")
        return _render(self.tools, tools=tools, system=system or "", has_system=system is not None, raw=raw, date=today)

    def write_question(self, tools: Sequence[Any], question: str) -> str:
        """The text of the first question."""
        return _render(self.question, tools=tools, question=question)

    def write_calls(self, calls: Sequence[dict[str, Any]]) -> str:
        """The model's text for calls of functions."""
        return _render(self.calls, calls=calls)

    def write_results(self, results: Sequence[str]) -> str:
        """The text for the results of functions."""
        return _render(self.results, results=results)


def names(tool: Tool) -> list[str]:
    """The names of LLaMA-Factory's or ms-swift's formats."""
    return sorted(table("tools")[tool])


def format_named(tool: Tool, name: str | None) -> ToolFormat | None:
    """LLaMA-Factory's or ms-swift's format with this name."""
    row = table("tools")[tool].get(name)
    return ToolFormat(**row) if row else None


def tools_of(text: str) -> list[Any]:
    """The tools that a row provides."""
    content = parsed(text)
    tools = content if isinstance(content, list) else [content]
    tools = [parsed(tool) if isinstance(tool, str) else tool for tool in tools]
    if not all(isinstance(tool, dict) for tool in tools):
        raise BadTurns("has tools that are not a list of objects in JSON")
    return tools


def parsed(text: str) -> Any:
    """Parse JSON, or Python's notation for the same; None if it is neither."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None


@functools.cache
def _environment() -> jinja2.Environment:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"json": _json, "text": _text, "bare": bare, "full": full, "described": _described}
    environment.globals["refuse"] = _refuse
    return environment


@functools.cache
def _compiled(template: str) -> jinja2.Template:
    return _environment().from_string(template)


def _render(template: str, **values: Any) -> str:
    import jinja2

    try:
        return _compiled(template).render(**values)
    except (jinja2.TemplateError, AttributeError, KeyError, TypeError) as error:
        raise BadTurns(f"has tools or calls that the template cannot write ({error})") from error


def _refuse(why: str) -> str:
    raise BadTurns(why)


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else _json(value)


def bare(tool: dict[str, Any]) -> Any:
    """The function of a tool, without the object around it."""
    return tool["function"] if "function" in tool and "type" in tool else tool


def full(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool in the format of OpenAI's API."""
    return tool if "type" in tool or "function" in tool else {"type": "function", "function": tool}


def _described(tool: dict[str, Any]) -> dict[str, Any]:
    function = bare(tool)
    name = function.get("name_for_model") or function.get("name")
    description = next((function[key] for key in DESCRIPTIONS if function.get(key) is not None), None)
    if name is None or description is None:
        raise BadTurns("has a tool without a name or a description")
    title = function.get("name_for_human") or name
    parameters = function.get("parameters") or {}
    return {"name": name, "title": title, "description": description, "parameters": parameters}
