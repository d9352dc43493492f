"""The inputs and outputs of schedulers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]
SENTENCE = 200  # characters of an exception's message


@dataclass(frozen=True)
class RolloutConversation:
    """A new conversation, which `uuid` identifies from now on."""

    uuid: str
    messages: Messages
    columns: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """An answer of the model in a conversation, the `number`th from 1. `ids` are its tokens without the end token.
    Nothing may follow the last one.
    """

    uuid: str
    number: int
    text: str
    ids: list[int]
    logprobs: list[float]
    was_cut: bool
    is_last: bool


@dataclass(frozen=True)
class TurnReply:
    """How a conversation continues after an answer.

    If it continues without new messages, the model continues its answer. `ids` are the tokens of the answer to keep, of
    which those with 0 in `loss_mask` are not learned from; None keeps them as they were sampled. `more` is text with
    which the answer continues, and which is not learned from either.
    """

    goes_on: bool = False
    messages: Messages = field(default_factory=list)
    ids: list[int] | None = None
    loss_mask: list[int] | None = None
    more: str = ""
    infos: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def plain(value: Any) -> Any:
    """A value as JSON, in which it can be sent and stored: arrays become lists, and what JSON cannot represent becomes
    text.

    >>> plain({"at": (1, 2), "by": object})
    {'at': [1, 2], 'by': "<class 'object'>"}
    """
    return json.loads(json.dumps(value, default=_written, skipkeys=True))


def _written(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def sentence(error: BaseException) -> str:
    """An exception's message.

    >>> sentence(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}"[:SENTENCE]
