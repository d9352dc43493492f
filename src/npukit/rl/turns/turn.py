"""What a scheduler is asked about, and what it says."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Messages = list[dict[str, Any]]
SENTENCE = 200  # characters of what an exception says


@dataclass(frozen=True)
class RolloutConversation:
    """A conversation that begins; `uuid` names it from now on."""

    uuid: str
    messages: Messages
    columns: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """An answer of the model in a conversation, the `number`th from 1; `ids` are its tokens without the one that ended
    it. After the last one nothing may follow.
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
    """How a conversation goes on after an answer.

    Where it goes on, but no messages follow, the model continues its answer. `ids` are the answer's tokens as they
    stay, of which those with 0 in `loss_mask` are not learnt from; None leaves them as they were sampled. `more` is
    text to continue with, which is not learnt from either.
    """

    goes_on: bool = False
    messages: Messages = field(default_factory=list)
    ids: list[int] | None = None
    loss_mask: list[int] | None = None
    more: str = ""
    infos: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def plain(value: Any) -> Any:
    """A value as JSON has it, in which it can be sent and kept: arrays become lists, and what JSON has no word for
    becomes text.

    >>> plain({"at": (1, 2), "by": object})
    {'at': [1, 2], 'by': "<class 'object'>"}
    """
    return json.loads(json.dumps(value, default=_written, skipkeys=True))


def _written(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def sentence(error: BaseException) -> str:
    """What an exception says.

    >>> sentence(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {error}"[:SENTENCE]
