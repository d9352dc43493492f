"""Try reward functions on the answers in a data file before training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.llm.data.files import read_file
from npukit.rl.rewards.answers import AnswerBatch, RewardProblem
from npukit.rl.rewards.plugin import without_functions
from npukit.rl.rewards.scorer import Scorer

ANSWERS = ("completion", "response", "output", "answer")  # columns that may contain an answer
TURNS = ("messages", "conversations")


@dataclass(frozen=True)
class RewardTrial:
    """The rewards of some rows."""

    functions: list[str]
    rewards: list[list[float | None]]  # of each row by each function
    means: list[float | None]  # of each function over the answers that it rewarded
    answers: list[str]
    problems: list[RewardProblem]


def try_rewards(options: RewardOptions, data: Path, rows: int = 8) -> RewardTrial:
    """Let functions reward the answers in a file: its column completion, response, output or answer, or the last
    message of a conversation.

    >>> try_rewards(RewardOptions(functions=["format"]), Path("rows.jsonl")).means
    [0.5]
    """
    if not (options.functions or options.plugins):
        raise NpukitError("Name reward functions, or Python files with some.")
    records = list(islice(_records(data), rows))
    if not records:
        raise NpukitError(f"{data} has no rows.")
    answers = [_answer(record, number) for number, record in enumerate(records)]
    texts = [text for _, text in answers]
    columns = [{name: value for name, value in record.items() if name not in TURNS} for record in records]
    ids = [list(range(len(text.split()))) for text in texts]  # words stand for tokens, as there is no model yet
    with Scorer(options, GrpoOptions(), list(columns[0])) as scorer:
        if not scorer.names:
            raise without_functions(options.plugins)
        scored, problems = scorer.score(AnswerBatch([prompt for prompt, _ in answers], texts, ids, columns))
    rewards = [[None if math.isnan(reward) else reward for reward in row] for row in scored]
    means = [_mean([reward for reward in column if reward is not None]) for column in zip(*rewards, strict=True)]
    return RewardTrial(scorer.names, rewards, means, texts, problems)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _records(data: Path) -> Iterator[dict[str, Any]]:
    for record in read_file(data):
        if record.problem or not isinstance(record.value, dict):
            raise NpukitError(f"{record.place} {record.problem or 'is no object with columns'}.")
        yield record.value


def _answer(row: dict[str, Any], number: int) -> tuple[list[dict[str, Any]], str]:
    """The conversation before the answer, and the answer."""
    turns = next((row[name] for name in TURNS if isinstance(row.get(name), list) and row[name]), None)
    if turns and turns[-1].get("role") == "assistant":
        return turns[:-1], str(turns[-1].get("content", ""))
    name = next((name for name in ANSWERS if isinstance(row.get(name), str)), None)
    if name is None:
        raise NpukitError(
            f"Row {number + 1} has no answer to reward: give it a column completion, or a last message by it."
        )
    asked = row.get("prompt", row.get("query", row.get("question", "")))
    return (asked if isinstance(asked, list) else [{"role": "user", "content": str(asked)}]), row[name]
