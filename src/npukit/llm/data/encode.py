"""From conversations and texts to tokens, of which some count in the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.llm.chat.render import NotRendered, Rendered, Renderer, Span
from npukit.llm.chat.templates import Template
from npukit.llm.config.options import DataOptions
from npukit.llm.data.layout import BadRow, Conversation, Text

Tokens = NDArray[np.int32]
TAIL = 32  # tokens at a long question's end that stay: how it ends, and the header of the answer


@dataclass(frozen=True)
class Encoded:
    """One row: a token that does not count in the loss is stored as its complement, which is negative."""

    tokens: Tokens
    was_cut: bool = False
    unmatched: int = 0


class Encoder:
    """Tokenises rows by the options."""

    def __init__(self, data: DataOptions, task: str, tokenizer: Any, template: Template) -> None:
        self._data = data
        self._task = task
        self._tokenizer = tokenizer
        self._eos: Any = tokenizer.eos_token_id
        stops = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._renderer = Renderer(template, tokenizer.special_tokens_map, stops)

    def encode(self, rows: Sequence[Conversation | Text]) -> list[list[Encoded] | BadRow]:
        """Each row's tokens, or why there are none. A text longer than the cutoff becomes several rows."""
        results: list[list[Encoded] | BadRow] = [[] for _ in rows]
        texts = {number: row for number, row in enumerate(rows) if isinstance(row, Text)}
        for number, ids in zip(texts, self._text_ids(list(texts.values())), strict=True):
            results[number] = self._pieces(ids)
        rendered: dict[int, Rendered] = {}
        for number, row in enumerate(rows):
            if not isinstance(row, Text):
                try:
                    rendered[number] = self._renderer.render(self._with_system(row))
                except NotRendered as error:
                    results[number] = BadRow(str(error))
        for number, (ids, spans) in zip(rendered, self._ids_and_answers(list(rendered.values())), strict=True):
            results[number] = self._row(ids, spans, rendered[number].unmatched)
        return results

    def _with_system(self, turns: Conversation) -> Conversation:
        if self._data.system and turns[0]["role"] != "system":
            return [{"role": "system", "content": self._data.system}, *turns]
        return turns

    def _text_ids(self, texts: list[Text]) -> Iterable[list[int]]:
        if not texts:
            return
        for text, ids in zip(texts, self._tokenizer([text.text for text in texts])["input_ids"], strict=True):
            ends_here = text.ends and self._eos is not None and ids[-1:] != [self._eos]
            yield [*ids, self._eos] if ends_here else ids

    def _pieces(self, ids: list[int]) -> list[Encoded]:
        tokens = np.array(ids, dtype=np.int32)
        cutoff = self._data.cutoff
        return [Encoded(tokens[start : start + cutoff]) for start in range(0, len(tokens), cutoff)]

    def _ids_and_answers(self, rendered: list[Rendered]) -> Iterable[tuple[list[int], list[Span]]]:
        """The tokens of whole renderings, and which tokens are the answers'."""
        if not self._tokenizer.is_fast:
            yield from map(self._by_parts, rendered)
            return
        backend = self._tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        encodings = backend.encode_batch([row.text for row in rendered], add_special_tokens=False)
        for row, encoding in zip(rendered, encodings, strict=True):
            spans = [_tokens_of(encoding, row.text, start, end) for start, end in row.answers]
            yield encoding.ids, spans

    def _by_parts(self, row: Rendered) -> tuple[list[int], list[Span]]:
        """A tokenizer that does not know which characters a token is of: what counts is tokenised apart."""
        ids: list[int] = []
        spans: list[Span] = []
        done = 0
        for start, end in (*row.answers, (len(row.text), len(row.text))):
            for part, counts in ((row.text[done:start], False), (row.text[start:end], True)):
                part_ids = self._tokenizer.encode(part, add_special_tokens=False) if part else []
                if counts and part_ids:
                    spans.append((len(ids), len(ids) + len(part_ids)))
                ids += part_ids
            done = end
        return ids, spans

    def _row(self, ids: list[int], spans: list[Span], unmatched: int) -> list[Encoded] | BadRow:
        everything = self._data.train_on_prompt or self._task == "pt"
        answers = spans[-1:] if self._data.last_answer_only else spans
        counted = np.full(len(ids), everything)
        for start, end in answers:
            counted[start:end] = True
        array = np.array(ids, dtype=np.int32)
        tokens = np.where(counted, array, ~array)
        kept = tokens if len(tokens) <= self._data.cutoff else _cut(tokens, answers, self._data.cutoff)
        if not (kept[1:] >= 0).any():
            return BadRow("has no tokens to train on")
        return [Encoded(kept, len(kept) < len(tokens), unmatched)]


def _tokens_of(encoding: Any, text: str, start: int, end: int) -> Span:
    """The tokens of these characters. A special token may have swallowed white space on its other side."""
    first = _token_at(encoding, start, len(text))
    if first < len(encoding):
        begins = encoding.token_to_chars(first)[0]
        first += begins < start and not text[begins:start].isspace()
    last = _token_at(encoding, end - 1, len(text))
    return first, max(last + 1, _token_at(encoding, end, len(text)))


def _token_at(encoding: Any, character: int, characters: int) -> int:
    """The first token of the text from this character on; white space may belong to none."""
    for at in range(character, min(character + 64, characters)):
        token = encoding.char_to_token(at)
        if token is not None:
            return int(token)
    return len(encoding)


def _cut(tokens: Tokens, answers: list[Span], cutoff: int) -> Tokens:
    """At most `cutoff` tokens. The end goes first; but an answer keeps at least half of the room.

    So a question that leaves its answer no room loses its middle: its head, its last words and the header of the
    answer stay.
    """
    first, end = answers[0] if answers else (0, len(tokens))
    room = max(cutoff - first, min(end - first, cutoff // 2))
    if first + room <= cutoff:
        return tokens[:cutoff]
    before = cutoff - room
    tail = min(TAIL, before // 4)
    return np.concatenate([tokens[: before - tail], tokens[first - tail : first], tokens[first : first + room]])
