"""Render conversations as text, and locate the answers in it.

A template may mark the model's text with {% generation %}, as ours do. For a template without such marks, the answers
are located by rendering the conversation up to each of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.chat.messages import as_messages
from npukit.llm.chat.peers.data import BadTurns
from npukit.llm.chat.peers.tools import bare
from npukit.llm.chat.templates import Template

Turn = dict[str, str]  # role and content
Span = tuple[int, int]
MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
OPEN_TOKEN = re.compile(r"<[^\s<>]{0,40}$")
PROBE = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me!"}]


class NotRendered(Exception):
    """Why a template cannot render a conversation, worded to follow "this row"."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as text; `answers` are the spans of the model's text, including the end of each answer."""

    text: str
    answers: tuple[Span, ...]
    unmatched: int = 0

    def expanded(self, written: Sequence[tuple[str, str]]) -> Rendered:
        """Replace marks, which must occur in this order, by texts; raises NotRendered if they do not.

        >>> Rendered("<i>? Yes", ((5, 8),)).expanded([("<i>", "<i><i>")])
        Rendered(text='<i><i>? Yes', answers=((8, 11),), unmatched=0)
        """
        marks = [mark for mark, _ in written]
        places = list(re.finditer("|".join(map(re.escape, dict.fromkeys(marks))), self.text))
        if [place[0] for place in places] != marks:
            names = " and ".join(dict.fromkeys(marks))
            raise NotRendered(f"has {len(marks)} images or videos, and {names} {len(places)} times when rendered")
        result, done, moved = "", 0, []
        for place, (_, text) in zip(places, written, strict=True):
            result += self.text[done : place.start()] + text
            moved.append((place.start(), len(text) - len(place[0])))
            done = place.end()
        result += self.text[done:]

        def after(place: int) -> int:
            return place + sum(by for start, by in moved if start < place)

        return Rendered(result, tuple((after(start), after(end)) for start, end in self.answers), self.unmatched)


class Renderer:
    """Renders conversations with a template and a tokenizer's special tokens; `stops` are those that may end an answer.

    >>> Renderer(find_template("chatml"), {}).render([{"role": "user", "content": "Hi"}]).text
    '<|im_start|>user\\nHi<|im_end|>\\n'
    """

    def __init__(self, template: Template, special_tokens: dict[str, Any], stops: Sequence[str] = ()) -> None:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render_jinja = render_jinja_template
        self._template = template
        self._variables = {"bos_token": "", "eos_token": "", **special_tokens}
        self._eos = self._variables["eos_token"] or ""
        self._stops = tuple(stop for stop in (self._eos, *stops) if stop)
        self._marked = MARK.search(template.text) is not None
        self._syntax_error = jinja2.exceptions.TemplateSyntaxError
        self._unasked_prompt = ""
        try:
            self._unasked_prompt = self._find_unasked_prompt()
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise NpukitError(f"The chat template {template.name}, line {error.lineno}: {error.message}.") from error
        except Exception:  # it may reject this conversation and accept others
            pass

    def keeps(self, text: str) -> bool:
        """Whether the template writes a turn's text unchanged. Some accept only content parts, of text and images."""
        try:
            return text in self._jinja([{"role": "user", "content": text}, PROBE[1]], prompt=False)[0]
        except NotRendered:
            return False

    def render(self, turns: list[Turn]) -> Rendered:
        """The text of the conversation and the spans of its answers; raises NotRendered if the template rejects it."""
        try:
            tools, messages = as_messages(turns)
            text, spans = self._jinja(messages, prompt=False, tools=tools)
            unmatched = 0
            if not self._marked:
                spans, unmatched = self._spans_by_prefixes(messages, text, tools)
        except BadTurns as error:
            raise NotRendered(str(error)) from error
        if lost := [name for name in _names(tools, messages) if name not in text]:
            raise NotRendered(f"has a tool, {lost[0]}, which the chat template does not write: choose one that does")
        return self._extend_to_end_tokens(text, spans, unmatched)

    def _jinja(
        self, turns: Sequence[Mapping[str, Any]], prompt: bool, tools: list[Any] | None = None
    ) -> tuple[str, list[Span]]:
        try:
            texts, spans = self._render_jinja(
                [turns],
                tools=tools,
                chat_template=self._template.text,
                return_assistant_tokens_mask=self._marked,
                add_generation_prompt=prompt,
                **self._variables,
            )
        except self._syntax_error:
            raise
        except Exception as error:  # a template is a program, which this conversation makes fail
            raise NotRendered(f"is refused by the chat template ({error})") from error
        text = texts[0] if prompt else texts[0].removesuffix(self._unasked_prompt)
        return text, spans[0] if spans else []

    def _find_unasked_prompt(self) -> str:
        """Find the header of the next answer, if the template writes it even without being asked to."""
        text, prompted = (self._jinja(PROBE, prompt)[0] for prompt in (False, True))
        before = self._jinja(PROBE[:1], prompt=True)[0].rpartition("Who?")[2]
        after = text.rpartition("Me!")[2]
        if text != prompted or not before.endswith(after):
            return ""
        stop = next((stop for stop in self._stops if after.startswith(stop)), "")
        header = after.removeprefix(stop)
        return header if header.strip() else ""

    def _spans_by_prefixes(
        self, turns: list[dict[str, Any]], text: str, tools: list[Any] | None
    ) -> tuple[list[Span], int]:
        """Each answer lies between the prompt before it and the conversation up to it, as far as these texts agree.

        A template may render an answer differently once others follow, for example without its reasoning. Such an
        answer does not count, because it is not what the model would have written at that point.
        """
        spans, unmatched, done = [], 0, 0
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            last = number == len(turns) - 1
            start = _agreement(self._jinja(turns[:number], True, tools)[0], text)
            end = len(text) if last else _agreement(self._jinja(turns[: number + 1], False, tools)[0], text)
            asked = number == 0 or _says(text[done:start], turns[number - 1])
            if asked and _says(text[start:end], turn):
                spans.append((start, end))
                done = end
            elif last:
                raise NotRendered("is changed by the chat template when its last answer is added; choose one by name")
            else:
                unmatched += 1
        return spans, unmatched

    def _extend_to_end_tokens(self, text: str, spans: list[Span], unmatched: int) -> Rendered:
        """Extend every answer to a token that means the end; otherwise the model would not learn to stop."""
        ended = []
        for start, end in spans:
            end = start + len(text[start:end].rstrip())
            if not text.endswith(self._stops, start, end):
                end += len(next((stop for stop in self._stops if text.startswith(stop, end)), ""))
            ended.append((start, end))
        if ended and self._eos and not text.rstrip().endswith(self._stops):
            text += self._eos
            ended[-1] = (ended[-1][0], len(text))
        return Rendered(text, tuple(ended), unmatched)


def _says(text: str, turn: Mapping[str, Any]) -> bool:
    content = turn["content"]
    parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
    return all(part.strip() in text for part in parts)


def _names(tools: list[Any] | None, messages: list[dict[str, Any]]) -> list[str]:
    """All names that a template must have written to describe the tools."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    return [str(tool.get("name", "")) for tool in (*map(bare, tools or ()), *calls)]


def _agreement(prefix: str, text: str) -> int:
    """How far the text agrees with the prefix. A control token that differs in part differs completely."""
    if text.startswith(prefix):
        return len(prefix)
    at = next((at for at, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), len(text))
    opened = OPEN_TOKEN.search(text, max(0, at - 41), at)
    return opened.start() if opened else at
