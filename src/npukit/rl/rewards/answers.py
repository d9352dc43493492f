"""The inputs and outputs of reward functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Messages = list[dict[str, Any]]
# What went wrong with a function: it raised an exception, took too long, returned a list of the wrong length, or
# returned something other than a number for an answer.
Kind = Literal["raised", "timeout", "length", "value"]
SHOWN = 200  # characters of an answer


@dataclass(frozen=True)
class AnswerBatch:
    """Answers to prompts, with the columns of the rows that the prompts came from.

    With several turns, `texts` are the last answers, `turns` all messages after the prompts, and `infos` the
    scheduler's information.
    """

    prompts: Sequence[Messages]
    texts: Sequence[str]
    ids: Sequence[Sequence[int]]
    columns: Sequence[dict[str, Any]]
    step: int = 0
    turns: Sequence[Messages] = ()
    infos: Sequence[dict[str, Any]] = ()

    @property
    def answer_messages(self) -> list[Messages]:
        """The messages of each answer."""
        return [list(turns) for turns in self.turns] or [
            [{"role": "assistant", "content": text}] for text in self.texts
        ]

    @property
    def conversations(self) -> list[Messages]:
        """The messages of each prompt and its answer."""
        return [[*prompt, *turns] for prompt, turns in zip(self.prompts, self.answer_messages, strict=True)]

    def __len__(self) -> int:
        return len(self.texts)

    def only(self, number: int) -> AnswerBatch:
        """A batch with one answer only."""
        at = slice(number, number + 1)
        parts = (self.prompts[at], self.texts[at], self.ids[at], self.columns[at])
        return AnswerBatch(*parts, self.step, self.turns[at], self.infos[at])


@dataclass(frozen=True)
class RewardProblem:
    """Why a function gave an answer no reward, a scheduler ended a conversation, or a prompt has no answer."""

    function: str
    kind: Kind
    sentence: str
    answer: str = ""  # the answer that caused it, if known
    of: Literal["reward", "scheduler", "prompt"] = "reward"

    @property
    def figure(self) -> str:
        """The name of the log's counter for such problems."""
        if self.of == "reward":
            return f"rewards/{self.function}/failed"
        return "turns/failed" if self.of == "scheduler" else "prompts/too_long"

    def __str__(self) -> str:
        shown = self.answer if len(self.answer) <= SHOWN else f"{self.answer[:SHOWN]}…"
        return f"{self.of} {self.function}: {self.sentence}" + (f" Answer: {shown!r}" if self.answer else "")


@dataclass
class Scores:
    """The rewards of one function, NaN for answers without one, and its problems."""

    rewards: list[float]
    problems: list[RewardProblem] = field(default_factory=list)
