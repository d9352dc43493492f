"""Parse an answer while it is generated: the content, the reasoning before it, and tool calls.

A model writes all three as one text. How it marks them is a `Syntax`, which is determined from the chat template that
the model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

THINK, END_OF_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class Content:
    """A piece of the content."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """A piece of the reasoning."""

    text: str


@dataclass(frozen=True)
class ToolCall:
    """One complete call; `arguments` is JSON text, as in OpenAI's API."""

    name: str
    arguments: str


Part = Content | Reasoning | ToolCall


@dataclass(frozen=True)
class Answer:
    """A complete answer."""

    content: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True)
class Syntax:
    """How a template expresses tool calls."""

    name: str
    signs: tuple[str, ...]  # strings that occur in every such template
    openings: tuple[str, ...]  # the start of a call
    closing: str  # the end of a call; "" if it lasts to the end of the answer
    only_first: bool  # no content may precede it
    read: Callable[[str], list[ToolCall]]  # raises ValueError, KeyError or TypeError if it is not a call


def _hermes(text: str) -> list[ToolCall]:
    return [_call(json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>")))]


def _llama3(text: str) -> list[ToolCall]:
    """One object after another, separated by semicolons or white space."""
    text = text.removeprefix("<|python_tag|>").strip()
    calls, at, decoder = [], 0, json.JSONDecoder()
    while at < len(text):
        value, at = decoder.raw_decode(text, at)
        calls.append(_call(value))
        while at < len(text) and (text[at] == ";" or text[at].isspace()):
            at += 1
    return calls


def _mistral(text: str) -> list[ToolCall]:
    """A list of objects, or since 2025 `name[ARGS]{…}` for each call."""
    text = text.removeprefix("[TOOL_CALLS]").strip()
    if text.startswith("["):
        return [_call(call) for call in json.loads(text)]
    named = (call.partition("[ARGS]") for call in text.split("[TOOL_CALLS]"))
    return [_call({"name": name.strip(), "arguments": json.loads(values)}) for name, _, values in named]


def _call(value: Any) -> ToolCall:
    """Hermes and Mistral use the key arguments, Llama uses parameters."""
    arguments = value["arguments"] if "arguments" in value else value.get("parameters", {})
    if not isinstance(value["name"], str) or not isinstance(arguments, dict):
        raise TypeError("a call has a name and an object of arguments")
    return ToolCall(value["name"], json.dumps(arguments, ensure_ascii=False))


HERMES = Syntax("hermes", ("<tool_call>", "tools"), ("<tool_call>",), "</tool_call>", False, _hermes)
SYNTAXES = (
    HERMES,
    Syntax("mistral", ("[TOOL_CALLS]", "tools"), ("[TOOL_CALLS]",), "", False, _mistral),
    Syntax("llama3", ("<|eot_id|>", '"parameters"', "tools"), ("{", "<|python_tag|>"), "", True, _llama3),
)
# Marks that a parser must see even if they are special tokens.
MARKERS = {THINK, END_OF_THINK, "[ARGS]"} | {mark for syntax in SYNTAXES for mark in (*syntax.openings, syntax.closing)}
XML_CALLS = "<function="  # inside <tool_call>: another syntax, which is not supported yet


def syntax_of(template: str) -> Syntax | None:
    """How a template expresses tool calls, as far as known.

    >>> syntax_of(qwen2_5_template).name
    'hermes'
    """
    known = (syntax for syntax in SYNTAXES if all(sign in template for sign in syntax.signs))
    return next(known, None) if XML_CALLS not in template else None


class AnswerParser:
    """Parses text as it is generated, and returns parts as soon as they are certain.

    >>> parser = AnswerParser(thinks=True, syntax=None)
    >>> [*parser.feed("<think>Hm.</th"), *parser.feed("ink>Yes"), *parser.end()]
    [Reasoning('Hm.'), Content('Yes')]
    """

    def __init__(self, thinks: bool, syntax: Syntax | None, is_thinking: bool = False) -> None:
        """`is_thinking`: the prompt has already opened the reasoning."""
        self._thinks, self._syntax = thinks, syntax
        self._read = self._start_of_reasoning if is_thinking else self._start
        self._rest = ""  # text that has not been returned yet

    def feed(self, text: str) -> list[Part]:
        """The parts that are certain after this text."""
        self._rest += text
        return list(self._parts(ended=False))

    def end(self) -> list[Part]:
        """The remaining parts, when the answer has ended."""
        return list(self._parts(ended=True))

    def _parts(self, ended: bool) -> Iterator[Part]:
        before = None
        while before != (self._rest, self._read):
            before = (self._rest, self._read)
            yield from self._read(ended)

    def _start(self, ended: bool) -> Iterator[Part]:
        """Reasoning, and a call that is the whole answer, can only be at the beginning."""
        start = self._rest.lstrip()
        expected = [THINK] if self._thinks else []
        if self._syntax and self._syntax.only_first:
            expected += self._syntax.openings
        opening = next((mark for mark in expected if start.startswith(mark)), None)
        if opening == THINK:
            self._rest, self._read = start.removeprefix(THINK), self._start_of_reasoning
        elif opening is not None:
            self._rest, self._read = start, self._call
        elif ended or (start and not any(mark.startswith(start) for mark in expected)):
            self._read = self._content
        yield from ()

    def _start_of_reasoning(self, ended: bool) -> Iterator[Part]:
        self._rest = self._rest.lstrip()
        if self._rest or ended:
            self._read = self._reasoning
        yield from ()

    def _reasoning(self, ended: bool) -> Iterator[Part]:
        text, ending, rest = self._rest.partition(END_OF_THINK)
        if ending:
            self._rest, self._read = rest.lstrip("\n"), self._after_reasoning
            text = text.rstrip()
        elif not ended:
            kept = _partial_mark_length(text, (END_OF_THINK,))
            text, self._rest = text[: len(text) - kept], text[len(text) - kept :]
            held = len(text) - len(text.rstrip())  # white space before its end does not belong to the reasoning
            text, self._rest = text[: len(text) - held], text[len(text) - held :] + self._rest
        else:
            self._rest = ""
        if text:
            yield Reasoning(text)

    def _after_reasoning(self, ended: bool) -> Iterator[Part]:
        self._rest = self._rest.lstrip("\n")
        if self._rest or ended:
            self._thinks, self._read = False, self._start
        yield from ()

    def _content(self, ended: bool) -> Iterator[Part]:
        openings = self._syntax.openings if self._syntax and not self._syntax.only_first else ()
        places = [at for opening in openings if (at := self._rest.find(opening)) >= 0]
        if places:
            text, self._rest = self._rest[: min(places)].rstrip(), self._rest[min(places) :]
            self._read = self._call
        elif openings and not ended:
            certain = len(self._rest) - _partial_mark_length(self._rest, openings)
            text = self._rest[:certain].rstrip()  # white space before a call does not belong to the content
            self._rest = self._rest[len(text) :]
        else:
            text, self._rest = self._rest, ""
        if text:
            yield Content(text)

    def _call(self, ended: bool) -> Iterator[Part]:
        syntax = self._syntax
        assert syntax is not None
        end = self._rest.find(syntax.closing) if syntax.closing else -1
        if end < 0 and not ended:
            return
        end = len(self._rest) if end < 0 else end + len(syntax.closing)
        text, self._rest = self._rest[:end], self._rest[end:].lstrip("\n")
        self._read = self._content
        try:
            yield from syntax.read(text)
        except (ValueError, KeyError, TypeError, AttributeError):
            yield Content(text)  # it started like a call but is none: show the user what the model wrote


def _partial_mark_length(text: str, marks: tuple[str, ...]) -> int:
    """The number of characters at the end of the text that may be the beginning of a mark."""
    longest = max(len(mark) for mark in marks) - 1
    sizes = range(min(longest, len(text)), 0, -1)
    return next((size for size in sizes if any(mark.startswith(text[-size:]) for mark in marks)), 0)


def whole(parts: list[Part]) -> Answer:
    """Combine parts into a complete answer."""
    return Answer(
        "".join(part.text for part in parts if isinstance(part, Content)),
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        tuple(part for part in parts if isinstance(part, ToolCall)),
    )
