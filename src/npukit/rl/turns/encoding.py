"""Tokenise what is said between two answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from npukit.llm.chat.answer import syntax_of
from npukit.llm.chat.templates import find_template
from npukit.llm.config.options import Config
from npukit.llm.data.encode import STAND_IN, Encoder
from npukit.llm.data.row import BadRow, Conversation, Layout
from npukit.llm.data.turns import ROLES, turns_of
from npukit.llm.tasks import task as tasks
from npukit.rl.turns.turn import Messages

UNLIMITED = 1 << 30
TOOLS = "tools"  # the role of tools
ANSWER = {"role": "assistant", "content": STAND_IN}
MARK = 0xF0000  # the first of the characters that stand for special tokens; Unicode assigns them no meaning


class PlainSpecials:
    """A tokenizer that treats a special token as plain text if `marked` has replaced it by a character."""

    is_fast = False  # texts are tokenised only by `encode`

    def __init__(self, tokenizer: Any) -> None:
        special = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
        self._tokenizer = tokenizer
        self._words = sorted(special | set(tokenizer.all_special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, self._words)) or "(?!)")
        self._marks = re.compile(f"([{chr(MARK)}-{chr(MARK + len(self._words))}])")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def marked(self, value: Any) -> Any:
        """A message with each special token in its text replaced by a character."""
        if isinstance(value, str):
            return self._special.sub(lambda found: chr(MARK + self._words.index(found[0])), value)
        if isinstance(value, dict):
            return {key: self.marked(item) for key, item in value.items()}
        return list(map(self.marked, value)) if isinstance(value, list) else value

    def encode(self, text: str, **options: Any) -> list[int]:
        """The tokens of a text. Only the template's special tokens are encoded as such."""
        ids: list[int] = []
        for part in filter(None, self._marks.split(text)):
            number = ord(part) - MARK if len(part) == 1 else -1
            is_word = 0 <= number < len(self._words)
            ids += self._as_text(self._words[number], options) if is_word else self._tokenizer.encode(part, **options)
        return ids

    def _as_text(self, word: str, options: dict[str, Any]) -> list[int]:
        tokenizer = self._tokenizer
        try:
            return list(tokenizer.encode(word, **options, split_special_tokens=True))
        finally:
            if tokenizer.is_fast:  # the backend would remember this for its other users
                tokenizer.backend_tokenizer.encode_special_tokens = tokenizer.split_special_tokens


class TurnEncoder:
    """Writes turns with the chat template of a configuration. Answers are not tokenised here: the sampled tokens are
    kept, and the template's text between two answers is inserted between them. What a tool, an environment or a
    scheduler says contains no special tokens; otherwise it could end its turn and start one of its own.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        task = tasks.of(config)
        everything = {"cutoff": UNLIMITED, "last_answer_only": False, "packing": False}
        data = task.data_options(config.data).model_copy(update=everything)
        self._tokenizer = tokenizer
        self._template = template = find_template(data.template, tokenizer, data.tokens)
        self._data, self._task = data, task
        self._encoder = Encoder(data, task, tokenizer, template)
        self.calls = None if data.tool_format else syntax_of(template.text)  # how tools are called, if known

    @cached_property
    def _plain(self) -> PlainSpecials:
        return PlainSpecials(self._tokenizer)

    @cached_property
    def _plain_encoder(self) -> Encoder:
        return Encoder(self._data, self._task, self._plain, self._template)

    def _outside(self, messages: Messages, given: Sequence[Any] = ()) -> tuple[Messages, Encoder]:
        """Messages that are not `given` by the data, and their encoder."""
        marked = [message if message in given else self._plain.marked(message) for message in messages]
        return (messages, self._encoder) if marked == messages else (marked, self._plain_encoder)

    def prompt(self, messages: Messages, given: Messages) -> tuple[int, ...]:
        """The tokens before the first answer; the data has `given` some of the messages. Raises BadRow."""
        offered = messages[:1] if messages[0]["role"] == TOOLS else []
        messages, encoder = self._outside(messages[len(offered) :], given)
        encoded = encoder.prompt([*offered, *turns_of(messages, Layout("messages"))])
        if isinstance(encoded, BadRow):
            raise encoded
        return tuple((~encoded.tokens).tolist())

    def between(self, before: Conversation, messages: Messages) -> list[int]:
        """The tokens after an answer up to the start of the next one; `before` is everything said before that answer.
        Raises BadRow.
        """
        before = [{**turn, "role": ROLES.get(turn["role"], turn["role"])} for turn in before]
        messages, encoder = self._outside(messages)
        row = encoder.encode([[*before, ANSWER, *turns_of(messages, Layout("messages")), ANSWER]])[0]
        if isinstance(row, BadRow):
            raise row
        tokens = row[0].tokens
        counted = np.flatnonzero(tokens >= 0)
        gaps = np.flatnonzero(np.diff(counted) > 1)
        if not len(gaps):
            raise BadRow("has nothing between two answers in this chat template")
        return [int(token) for token in ~tokens[counted[gaps[-1]] + 1 : counted[gaps[-1] + 1]]]

    def text(self, text: str) -> list[int]:
        """The tokens of text that continues an answer."""
        return self._plain.encode(self._plain.marked(text), add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
