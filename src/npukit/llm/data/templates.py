"""Chat templates: the tokenizer's own, one of ours by name, or a Jinja file. All are Jinja, as transformers reads it.

Ours mark what the model says with {% generation %}. For a template without that mark the answers are found by
rendering the conversation up to each of them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.data.layout import BadRow, Turn

FOLDER = Path(__file__).parent / "templates"
OTHER_NAMES = {
    "deepseek2": "deepseek",
    "glm": "glm4",
    "phi3": "phi",
    "qwen2": "qwen",
    "qwen2.5": "qwen2_5",
    "qwen3_nothink": "chatml",
    "yi": "chatml",
}
MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
CONTROL = re.compile(r"<[|｜][^<>\s]+[|｜]>|<(?:start|end)_of_turn>")


def names() -> list[str]:
    """The templates that have a name."""
    return sorted(file.stem for file in FOLDER.glob("*.jinja"))


@dataclass(frozen=True)
class Template:
    """A chat template: its name for people, and its Jinja text."""

    name: str
    text: str


def find_template(name: str | None, tokenizer: Any = None) -> Template:
    """The template of this name or file, or the tokenizer's own; `default` where it has none."""
    if name is None:
        own = getattr(tokenizer, "chat_template", None)
        if isinstance(own, dict):
            own = own.get("default")
        return Template("the tokenizer's", own) if own else find_template("default")
    file = FOLDER / f"{OTHER_NAMES.get(name, name)}.jinja"
    if "/" not in name and file.is_file():
        return Template(file.stem, file.read_text("utf-8"))
    if name.endswith((".jinja", ".jinja2", ".j2")):
        try:
            return Template(name, Path(name).expanduser().read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise NpukitError(f"The chat template {name} cannot be read: {error}.") from error
    close = difflib.get_close_matches(name, [*names(), *OTHER_NAMES], n=1)
    meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}."
    raise NpukitError(
        f"There is no chat template {name!r}; {meant} Without data.template the tokenizer's own is used; "
        "a .jinja file will do too."
    )


@dataclass(frozen=True)
class Rendered:
    """A conversation as text; `answers` are the spans of what the model says, the end of each answer included."""

    text: str
    answers: tuple[tuple[int, int], ...]
    unmatched: int = 0


class Renderer:
    """Renders conversations with a template and a tokenizer's special tokens.

    >>> Renderer(find_template("chatml"), {}).render([{"role": "user", "content": "Hi"}]).text
    '<|im_start|>user\\nHi<|im_end|>\\n'
    """

    def __init__(self, template: Template, special_tokens: dict[str, Any], stops: Sequence[str] = ()) -> None:
        import jinja2
        from transformers.utils.chat_template_utils import render_jinja_template

        self._render_jinja = render_jinja_template
        self._template = template
        self._variables = {"bos_token": "", "eos_token": "", **special_tokens}
        self._stops = tuple(stops)
        self._marked = MARK.search(template.text) is not None
        self._error = jinja2.exceptions.TemplateError
        try:
            self._jinja([{"role": "user", "content": "Hi"}], prompt=False)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise NpukitError(f"The chat template {template.name}, line {error.lineno}: {error.message}.") from error
        except Exception:  # it may refuse this conversation and take the others
            pass

    def render(self, turns: list[Turn]) -> Rendered:
        """The text of the conversation and where its answers are; raises BadRow where the template refuses it."""
        try:
            text, spans = self._jinja(turns, prompt=False)
            unmatched = 0
            if not self._marked:
                spans, unmatched = self._spans_by_prefixes(turns, text)
        except (self._error, TypeError, KeyError, AttributeError) as error:
            raise BadRow(f"is refused by the chat template ({error})") from error
        return self._ended(text, spans, unmatched)

    def _jinja(self, turns: list[Turn], prompt: bool) -> tuple[str, list[tuple[int, int]]]:
        texts, spans = self._render_jinja(
            [turns],
            chat_template=self._template.text,
            return_assistant_tokens_mask=self._marked,
            add_generation_prompt=prompt,
            **self._variables,
        )
        return texts[0], spans[0] if spans else []

    def _spans_by_prefixes(self, turns: list[Turn], text: str) -> tuple[list[tuple[int, int]], int]:
        """Each answer lies between the prompt before it and the conversation up to it, as far as the text agrees.

        A template may write an answer in another way once others follow (without its reasoning, say): such an answer
        is not what the model would have said then, so it does not count.
        """
        spans, unmatched = [], 0
        for number, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            last = number == len(turns) - 1
            start = _agreement(self._jinja(turns[:number], prompt=True)[0], text)
            end = len(text) if last else _agreement(self._jinja(turns[: number + 1], prompt=False)[0], text)
            if turn["content"].strip() in text[start:end]:
                spans.append((start, start + len(text[start:end].rstrip())))
            elif last:
                raise BadRow("has an answer that the chat template changes; choose a template by name")
            else:
                unmatched += 1
        return spans, unmatched

    def _ended(self, text: str, spans: list[tuple[int, int]], unmatched: int) -> Rendered:
        """Every answer ends with a token that means the end: without one the model would not learn to stop."""
        eos = self._variables["eos_token"] or ""
        spans = [(start, end + len(eos) if eos and text.startswith(eos, end) else end) for start, end in spans]
        if spans and eos and not text.rstrip().endswith((eos, *self._stops)):
            text += eos
            spans[-1] = (spans[-1][0], len(text))
        return Rendered(text, tuple(spans), unmatched)


def _agreement(prefix: str, text: str) -> int:
    if text.startswith(prefix):
        return len(prefix)
    return next((at for at, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), len(text))


def missing_tokens(template: Template, tokenizer: Any) -> list[str]:
    """Control tokens that the template writes and the tokenizer does not have: it would spell them out."""
    known = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.get_vocab())
    return sorted(set(CONTROL.findall(template.text)) - known)
