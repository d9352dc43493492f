"""The tokens of what is said between two answers."""

from __future__ import annotations

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
TOOLS = "tools"  # the role of what can be called
ANSWER = {"role": "assistant", "content": STAND_IN}


class TurnEncoder:
    """Writes turns as the chat template of a configuration does. Answers are not tokenised here: the tokens that the
    model sampled stay, and what the template writes between two answers stands between them.
    """

    def __init__(self, config: Config, tokenizer: Any) -> None:
        task = tasks.of(config)
        everything = {"cutoff": UNLIMITED, "last_answer_only": False, "packing": False}
        data = task.data_options(config.data).model_copy(update=everything)
        self._tokenizer = tokenizer
        template = find_template(data.template, tokenizer, data.tokens)
        self._encoder = Encoder(data, task, tokenizer, template)
        self.calls = None if data.tool_format else syntax_of(template.text)  # how tools are called, if it is known

    def prompt(self, messages: Messages) -> tuple[int, ...]:
        """The tokens before the first answer; raises BadRow."""
        offered = messages[:1] if messages[0]["role"] == TOOLS else []
        encoded = self._encoder.prompt([*offered, *turns_of(messages[len(offered) :], Layout("messages"))])
        if isinstance(encoded, BadRow):
            raise encoded
        return tuple((~encoded.tokens).tolist())

    def between(self, before: Conversation, messages: Messages) -> list[int]:
        """The tokens after an answer up to where the next one begins; `before` is all that was said before that answer.
        Raises BadRow.
        """
        before = [{**turn, "role": ROLES.get(turn["role"], turn["role"])} for turn in before]
        turns = [*before, ANSWER, *turns_of(messages, Layout("messages")), ANSWER]
        row = self._encoder.encode([turns])[0]
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
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def decode(self, ids: list[int]) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
