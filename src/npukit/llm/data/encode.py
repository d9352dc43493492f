"""Tokenise conversations and texts, and mark the tokens that count in the loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npukit.errors import NpukitError
from npukit.llm.chat.peers import llama_factory, ms_swift
from npukit.llm.chat.peers.data import BadTurns
from npukit.llm.chat.render import NotRendered, Rendered, Renderer, Span
from npukit.llm.chat.templates import Template
from npukit.llm.config.options import DataOptions
from npukit.llm.data.media import filled, in_parts, spread
from npukit.llm.data.row import BadRow, Conversation, Row, TextRow
from npukit.llm.data.row import Tokens as TokenRow
from npukit.llm.images.files import BadImage
from npukit.llm.images.images import Images, RowImage
from npukit.llm.medium import MediaItem
from npukit.llm.tasks.task import Task

Tokens = NDArray[np.int32]
SEPARATOR = -(1 << 31)  # between the texts of a row that has several
BYTES = SEPARATOR + 1  # added to the bytes of a row's data other than tokens
END = 1 << 30  # added to a token whose label is the end token instead of itself
MORE = 1 << 28  # added once for each additional time that a token counts, up to three
NAMED = {"image": "an image", "video": "a video", "audio": "audio"}
STAND_IN = "?"  # stands in for the answer of a question that has none yet
TAIL = 32  # tokens to keep at a long question's end: its last words and the answer's header


@dataclass(frozen=True)
class Encoded:
    """One row. A token that does not count in the loss is stored as its complement, which is negative."""

    tokens: Tokens
    was_cut: bool = False
    unmatched: int = 0
    images: tuple[RowImage, ...] = ()

    def at(self, place: str) -> Encoded:
        """The same with images that record which row refers to them."""
        return replace(self, images=tuple(replace(image, place=place) for image in self.images))


def stored_bytes(content: bytes) -> Tokens:
    """Encode bytes for storage among the tokens of a row.

    >>> kept_bytes(stored_bytes(b"label"))
    b'label'
    """
    return np.frombuffer(content, np.uint8).astype(np.int32) + np.int32(BYTES)


def kept_bytes(tokens: Tokens) -> bytes:
    """The inverse of `stored_bytes`."""
    return (tokens - np.int32(BYTES)).astype(np.uint8).tobytes()


def are_bytes(tokens: Tokens) -> NDArray[np.bool_]:
    """Which of the numbers are bytes rather than tokens."""
    return (tokens >= BYTES) & (tokens < BYTES + 256)


class Encoder:
    """Tokenises rows according to the options."""

    def __init__(
        self, data: DataOptions, task: Task, tokenizer: Any, template: Template, images: Images | None = None
    ) -> None:
        self.data, self.task, self.tokenizer, self.template, self.images = data, task, tokenizer, template, images
        stops = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._writer = _writer(template, tokenizer, data)
        self._renderer = None if self._writer else Renderer(template, tokenizer.special_tokens_map, stops)
        self._writes_text = not images or not self._renderer or self._renderer.keeps(images.markers[images.vision.kind])

    @property
    def end_id(self) -> int:
        """The label of tokens that stand for the end."""
        return self.tokenizer.eos_token_id or 0

    def encode(self, rows: Sequence[Row]) -> list[list[Encoded] | BadRow]:
        """The tokens of each row, or why there are none. A text longer than the cutoff becomes several rows."""
        results: list[list[Encoded] | BadRow] = [[] for _ in rows]
        texts = {number: row for number, row in enumerate(rows) if isinstance(row, TextRow)}
        for number, ids in zip(texts, self._text_ids(list(texts.values())), strict=True):
            results[number] = self._pieces(ids)
        rendered: dict[int, Rendered] = {}
        for number, row in enumerate(rows):
            if isinstance(row, TextRow):
                continue
            if isinstance(row, TokenRow):
                results[number] = self._fitting(_labelled(row.ids, row.labels))
            elif not isinstance(row, list):
                results[number] = row.encode(self)
            elif self._writer:
                results[number] = self._as_the_peer(row)
            elif self._renderer:
                try:
                    rendered[number] = self._renderer.render(self._with_system(row))
                except NotRendered as error:
                    results[number] = BadRow(str(error))
        for number, (ids, spans) in zip(rendered, self._ids_and_answers(list(rendered.values())), strict=True):
            results[number] = self._row(ids, spans, rendered[number].unmatched)
        return results

    def answers(self, question: Conversation, answers: Sequence[str]) -> list[Tokens] | BadRow:
        """The tokens of a question with each of its answers. Only the answer counts."""
        encoded = self.illustrated_answers(question, answers, ())
        return encoded if isinstance(encoded, BadRow) else encoded[0]

    def illustrated_answers(
        self, question: Conversation, answers: Sequence[str], media: Sequence[MediaItem]
    ) -> tuple[list[Tokens], tuple[RowImage, ...]] | BadRow:
        """The same for a question with images or videos, together with these."""
        rows = [[*question, {"role": "assistant", "content": answer}] for answer in answers]
        images: tuple[RowImage, ...] = ()
        try:
            if isinstance(self._writer, llama_factory.Writer):
                turns, images = self._placed(question, media) if media else (question, ())
                made = [
                    Encoded(_labelled(*row)) for row in self._writer.answers(self._with_texts(turns, images), answers)
                ]
                found = [self._unless_truncated([encoded], images) for encoded in made]
            elif media:
                images = self._placed(rows[0], media)[1]
                found = [self.illustrated(row, media) for row in rows]
            else:
                found = self.encode(rows)
        except BadRow as error:
            return error
        if bad := [row for row in found if isinstance(row, BadRow)]:
            return bad[0]
        return [row[0].tokens for row in found if isinstance(row, list)], images

    def illustrated(self, turns: Conversation, media: Sequence[MediaItem]) -> list[Encoded] | BadRow:
        """A conversation with images or videos, each of which becomes as many tokens as it has features."""
        try:
            turns, images = self._placed(turns, media)
        except BadRow as error:
            return error
        encoded = self._as_the_peer(self._with_texts(turns, images)) if self._writer else self._rendered(turns, images)
        return encoded if isinstance(encoded, BadRow) else self._unless_truncated(encoded, images)

    def _placed(self, turns: Conversation, media: Sequence[MediaItem]) -> tuple[Conversation, tuple[RowImage, ...]]:
        """The turns with a tag for each image or video, and the media in the order of their tags, with sizes from file
        headers. Raises BadRow.
        """
        if self.images is None:
            raise BadRow(f"has {media[0].kind}s, and this model reads text only")
        objects = getattr(media, "objects", None)
        turns, media = spread(turns, media, self.data.tokens)
        images = []
        for medium in media:
            try:
                images.append(self.images.measure(medium))
            except BadImage as error:
                raise BadRow(f"has {NAMED[medium.kind]} that cannot be used: {error}") from None
        return self.images.pointed_at(turns, objects, images) if objects else turns, tuple(images)

    def _with_texts(self, turns: Conversation, images: Sequence[RowImage]) -> Conversation:
        """The turns with image tokens as text, so that rows are truncated as the other tools truncate them."""
        if self.images is None:
            return turns
        markers, written = self.images.markers, self.images.written(images)
        pairs = zip(images, written, strict=True)
        return filled(turns, [(image.kind, markers[image.kind].replace(mark, text)) for image, (mark, text) in pairs])

    def _rendered(self, turns: Conversation, images: Sequence[RowImage]) -> list[Encoded] | BadRow:
        try:
            row = self._rendering(turns, images)
        except NotRendered as error:
            return BadRow(str(error))
        ids, spans = next(iter(self._ids_and_answers([row])))
        return self._row(ids, spans, row.unmatched)

    def _rendering(self, turns: Conversation, images: Sequence[RowImage]) -> Rendered:
        """The template's output with the tokens of images; raises NotRendered."""
        assert self._renderer
        turns = self._with_system(turns)
        if not images:
            return self._renderer.render(turns)
        assert self.images
        markers = self.images.markers
        marked: Any = in_parts(turns, {image.kind for image in images})
        if self._writes_text:
            marked = filled(turns, [(image.kind, markers[image.kind]) for image in images])
        return self._renderer.render(marked).expanded(self.images.written(images))

    def _unless_truncated(self, encoded: list[Encoded], images: tuple[RowImage, ...]) -> list[Encoded] | BadRow:
        """The row with its images, if truncation kept all their tokens."""
        if not images:
            return encoded
        assert self.images
        wanted, tokens = sum(image.size.tokens for image in images), encoded[0].tokens
        there = int(self.images.is_image(np.where(tokens < 0, ~tokens, tokens)).sum())
        if there < wanted:
            return BadRow(
                f"has {images[0].kind}s of {wanted} tokens, of which {there} are left after it was cut to "
                f"{self.data.cutoff}: raise data.cutoff, or lower data.{images[0].kind}_max_pixels"
            )
        if there > wanted:
            return BadRow(f"has {self.images.tokens} in its text, which stands for a part of an image")
        return [replace(encoded[0], images=images)]

    def prompt(self, question: Conversation, media: Sequence[MediaItem] = ()) -> Encoded | BadRow:
        """The tokens of a question with its media, up to the start of an answer; none of them counts."""
        turns = [*question, {"role": "assistant", "content": STAND_IN}]
        try:
            turns, images = self._placed(turns, media) if media else (turns, ())
        except BadRow as error:
            return error
        tokens = (self._peers_prompt if self._writer else self._rendered_prompt)(turns, images)
        if isinstance(tokens, BadRow):
            return tokens
        if not len(tokens):
            return BadRow("has a question without tokens: the tokenizer knows none of its words")
        was_cut = len(tokens) > self.data.cutoff
        if was_cut and self.data.too_long != "cut_start":
            return self._long_question()
        if was_cut:
            tokens = _cut(tokens, [(len(tokens), len(tokens))], self.data.cutoff)
        row = self._unless_truncated([Encoded(tokens, was_cut)], images)
        return row if isinstance(row, BadRow) else row[0]

    def _long_question(self) -> BadRow:
        return BadRow(f"has a question of more than {self.data.cutoff} tokens (data.cutoff, or what the model reads)")

    def _rendered_prompt(self, turns: Conversation, images: Sequence[RowImage]) -> Tokens | BadRow:
        """The tokens of the text before the last answer, whatever tokens that answer would get."""
        try:
            rendered = self._rendering(turns, images)
        except NotRendered as error:
            return BadRow(str(error))
        if not rendered.answers:
            return BadRow("has a question after which the chat template writes no answer")
        text = rendered.text[: rendered.answers[-1][0]]
        return ~np.array(self.tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)

    def _peers_prompt(self, turns: Conversation, images: Sequence[RowImage]) -> Tokens | BadRow:
        encoded = self._as_the_peer(self._with_texts(turns, images) if images else turns)
        if isinstance(encoded, BadRow):
            return encoded
        if encoded[0].was_cut and self.data.too_long != "cut_start":
            return self._long_question()
        tokens, counted = encoded[0].tokens, np.flatnonzero(encoded[0].tokens >= 0)
        return tokens[: counted[0]] if len(counted) else tokens

    def text(self, text: Conversation | list[int], media: Sequence[MediaItem] = ()) -> list[Encoded] | BadRow:
        """The tokens of a text, or of a text pair, unless a chat template is requested."""
        if isinstance(text[0], int):
            return self._fitting(np.array(text, dtype=np.int32))
        turns: Any = text
        if media:
            try:
                turns, images = self._placed(turns, media)
            except BadRow as error:
                return error
            encoded = self.text(self._with_texts(turns, images))
            return encoded if isinstance(encoded, BadRow) else self._unless_truncated(encoded, images)
        if self.data.template:
            return self._as_the_peer(turns)
        texts = [turn["content"] for turn in turns]
        ids = self.tokenizer(*(texts if len(texts) <= 2 else ["\n".join(texts)]))["input_ids"]
        return self._fitting(np.array(ids, dtype=np.int32))

    def _fitting(self, tokens: Tokens) -> list[Encoded] | BadRow:
        return [Encoded(tokens)] if len(tokens) <= self.data.cutoff else self._shortened(tokens)

    def _as_the_peer(self, turns: Conversation) -> list[Encoded] | BadRow:
        """A row as the tool in data.tokens writes it. LLaMA-Factory's writer has already truncated it."""
        assert self._writer
        weights = None
        try:
            if isinstance(self._writer, ms_swift.Writer) and self._writer.weigh:
                ids, labels, weights = self._writer.weighed_row(turns)
            else:
                ids, labels = self._writer.row(turns)
        except BadTurns as error:
            return BadRow(str(error))
        tokens = _labelled(ids, labels, weights)
        if isinstance(self._writer, llama_factory.Writer) or len(tokens) <= self.data.cutoff:
            return [Encoded(tokens, len(tokens) == self.data.cutoff)]
        return self._shortened(tokens)

    def _shortened(self, tokens: Tokens) -> list[Encoded] | BadRow:
        cutoff = self.data.cutoff
        if self.data.too_long == "drop":
            return BadRow(f"has {len(tokens)} tokens, more than {cutoff}, and too_long is drop")
        if self.data.too_long == "split":
            return [Encoded(tokens[start : start + cutoff]) for start in range(0, len(tokens), cutoff)]
        return [Encoded(tokens[-cutoff:] if self.data.too_long == "cut_start" else tokens[:cutoff], was_cut=True)]

    def _with_system(self, turns: Conversation) -> Conversation:
        if self.data.system and not any(turn["role"] == "system" for turn in turns):
            after = 1 if turns[0]["role"] == "tools" else 0
            return [*turns[:after], {"role": "system", "content": self.data.system}, *turns[after:]]
        return turns

    def _text_ids(self, texts: list[TextRow]) -> Iterable[list[int]]:
        if not texts:
            return
        if self.data.tokens == "llama_factory":
            yield from (self._as_llama_factory_pre_trains(text.text) for text in texts)
            return
        for text, ids in zip(texts, self.tokenizer([text.text for text in texts])["input_ids"], strict=True):
            eos = self.tokenizer.eos_token_id
            ends_here = text.ends and eos is not None and ids[-1:] != [eos]
            yield [*ids, eos] if ends_here else ids

    def _as_llama_factory_pre_trains(self, text: str) -> list[int]:
        end = "<|end_of_text|>" if self.data.template == "llama3" else self.tokenizer.eos_token or ""
        ids: list[int] = self.tokenizer.encode(text + end, add_special_tokens=False)
        if self.data.packing:
            return ids
        begin = [self.tokenizer.bos_token_id] if getattr(self.tokenizer, "add_bos_token", False) else []
        return [*begin, *ids][: self.data.cutoff]

    def _pieces(self, ids: list[int]) -> list[Encoded]:
        tokens = np.array(ids, dtype=np.int32)
        cutoff = self.data.cutoff
        if self.data.tokens == "ms_swift" and len(tokens) > cutoff and self.data.too_long != "split":
            shortened = self._shortened(tokens)
            return shortened if isinstance(shortened, list) else []
        return [Encoded(tokens[start : start + cutoff]) for start in range(0, len(tokens), cutoff)]

    def _ids_and_answers(self, rendered: list[Rendered]) -> Iterable[tuple[list[int], list[Span]]]:
        """The tokens of complete renderings, and which tokens belong to answers."""
        if not self.tokenizer.is_fast:
            yield from map(self._by_parts, rendered)
            return
        backend = self.tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        texts = [row.text for row in rendered]
        try:
            encodings = backend.encode_batch(texts, add_special_tokens=False)
        except BaseException as error:
            if type(error).__name__ != "PanicException":  # the library raises it from Rust, and it is not an Exception
                raise
            longest = max(map(len, texts))
            raise NpukitError(
                f"The tokenizer failed on a row, probably one of {longest:,} characters: split it, or leave it out."
            ) from None
        for row, encoding in zip(rendered, encodings, strict=True):
            spans = [_tokens_of(encoding, row.text, start, end) for start, end in row.answers]
            yield encoding.ids, spans

    def _by_parts(self, row: Rendered) -> tuple[list[int], list[Span]]:
        """For a tokenizer that does not report the characters of tokens: tokenise the parts that count separately."""
        ids: list[int] = []
        spans: list[Span] = []
        done = 0
        for start, end in (*row.answers, (len(row.text), len(row.text))):
            for part, counts in ((row.text[done:start], False), (row.text[start:end], True)):
                part_ids = self.tokenizer.encode(part, add_special_tokens=False) if part else []
                if counts and part_ids:
                    spans.append((len(ids), len(ids) + len(part_ids)))
                ids += part_ids
            done = end
        return ids, spans

    def _row(self, ids: list[int], spans: list[Span], unmatched: int) -> list[Encoded] | BadRow:
        everything = self.data.train_on_prompt or self.task.counts_everything
        answers = spans[-1:] if self.data.last_answer_only else spans
        counted = np.full(len(ids), everything)
        for start, end in answers:
            counted[start:end] = True
        array = np.array(ids, dtype=np.int32)
        tokens = np.where(counted, array, ~array)
        if len(tokens) > self.data.cutoff and self.data.too_long == "drop":
            return self._shortened(tokens)
        kept = tokens if len(tokens) <= self.data.cutoff else _cut(tokens, answers, self.data.cutoff)
        if not (kept[1:] >= 0).any():
            return BadRow("has no tokens to train on")
        return [Encoded(kept, len(kept) < len(tokens), unmatched)]


def _writer(template: Template, tokenizer: Any, data: DataOptions) -> llama_factory.Writer | ms_swift.Writer | None:
    """The writer that produces another tool's tokens, if these are requested."""
    common: dict[str, Any] = {"system": data.system, "train_on_prompt": data.train_on_prompt}
    common["last_answer_only"] = data.last_answer_only
    if template.slots:
        slots = llama_factory.with_tool_format(template.slots, data.tool_format) if data.tool_format else template.slots
        return llama_factory.Writer(slots, tokenizer, data.cutoff, **common, thinking=data.thinking)
    if template.meta:
        common |= {"train_on_empty_thought": data.train_on_empty_thought, "weigh": data.weigh}
        return ms_swift.Writer(ms_swift.with_agent(template.meta, data.tool_format), tokenizer, **common)
    return None


def _labelled(ids: list[int], labels: list[int], weights: list[int] | None = None) -> Tokens:
    """One number per token: itself if it counts, or its complement. With END added, the end token counts instead."""
    tokens, wanted = np.array(ids, dtype=np.int32), np.array(labels[: len(ids)], dtype=np.int32)
    counted = np.where(wanted == tokens, tokens, tokens + END)
    if weights is not None:
        counted += (np.clip(np.array(weights, dtype=np.int32), 1, 4) - 1) * MORE
    return np.where(wanted < 0, ~tokens, counted).astype(np.int32)


def _tokens_of(encoding: Any, text: str, start: int, end: int) -> Span:
    """The tokens of these characters. A special token may have absorbed white space next to it."""
    first = _token_at(encoding, start, len(text))
    if first < len(encoding):
        begins = encoding.token_to_chars(first)[0]
        first += begins < start and not text[begins:start].isspace()
    last = _token_at(encoding, end - 1, len(text))
    return first, max(last + 1, _token_at(encoding, end, len(text)))


def _token_at(encoding: Any, character: int, characters: int) -> int:
    """The first token from this character on; white space may belong to no token."""
    for at in range(character, min(character + 64, characters)):
        token = encoding.char_to_token(at)
        if token is not None:
            return int(token)
    return len(encoding)


def _cut(tokens: Tokens, answers: list[Span], cutoff: int) -> Tokens:
    """Truncate to `cutoff` tokens. The end is dropped first, but an answer keeps at least half of the space.

    If a question leaves its answer no space, the question's middle is dropped: its beginning, its last words and the
    answer's header stay.
    """
    first, end = answers[0] if answers else (0, len(tokens))
    room = max(cutoff - first, min(end - first, cutoff // 2))
    if first + room <= cutoff:
        return tokens[:cutoff]
    before = cutoff - room
    tail = min(TAIL, before // 4)
    return np.concatenate([tokens[: before - tail], tokens[first - tail : first], tokens[first : first + room]])
