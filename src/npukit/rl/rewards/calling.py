"""Call reward functions, and turn whatever they return into numbers."""

from __future__ import annotations

import asyncio
import inspect
import math
import types
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from npukit.errors import NpukitError
from npukit.llm.config.nearest import nearest
from npukit.llm.config.reinforcement import GrpoOptions, RewardOptions
from npukit.rl.rewards.answers import AnswerBatch, Kind, RewardProblem, Scores
from npukit.rl.rewards.functions import built_in
from npukit.rl.rewards.plugin import MakeFunction, PluginFunction, load_plugins, missing

Functions = dict[str, PluginFunction]


def find_functions(options: RewardOptions, grpo: GrpoOptions) -> Functions:
    """The functions that a configuration names, in its order; by default all in its files.

    >>> list(find_functions(RewardOptions(functions=["format"]), GrpoOptions()))
    ['format']
    """
    args = types.SimpleNamespace(**grpo.model_dump(), **options.model_dump())
    own = built_in(options, grpo.max_completion_length)
    known: dict[str, MakeFunction] = {name: partial(PluginFunction, function, False) for name, function in own.items()}
    theirs = load_plugins(options.plugins, args)
    known |= theirs
    for name in options.functions:
        if name not in known:
            near = nearest(name, known)
            hint = f"did you mean {near}?" if near else f"there are {', '.join(known)}."
            raise NpukitError(f"rewards.functions: there is no reward function {name}: {hint}")
    return {name: known[name]() for name in options.functions or theirs}


def check_columns(functions: Functions, columns: Sequence[str]) -> None:
    """Refuse a function that needs a column which the data does not have."""
    for name, function in functions.items():
        if lacking := missing(function.call, columns):
            has = ", ".join(columns) or "no columns"
            raise NpukitError(f"The reward function {name} needs the column {lacking[0]}; the data has {has}.")


def score(name: str, function: Callable[[AnswerBatch], Any], answers: AnswerBatch) -> Scores:
    """The rewards of all answers. If a function fails, it is called for each answer separately, to find the one that
    makes it fail.
    """
    try:
        returned = _called(function, answers)
    except Exception as error:
        if len(answers) > 1:
            alone = [score(name, function, answers.only(number)) for number in range(len(answers))]
            return Scores([one.rewards[0] for one in alone], [problem for one in alone for problem in one.problems])
        return _none(answers, RewardProblem(name, "raised", f"{type(error).__name__}: {error}.", answers.texts[0]))
    return _numbers(name, returned, answers)


def _called(function: Callable[[AnswerBatch], Any], answers: AnswerBatch) -> Any:
    returned = function(answers)
    return asyncio.run(_awaited(returned)) if inspect.isawaitable(returned) else returned


async def _awaited(returned: Awaitable[Any]) -> Any:
    return await returned


def _numbers(name: str, returned: Any, answers: AnswerBatch) -> Scores:
    try:
        values = None if isinstance(returned, str | bytes | dict) else list(returned)
    except TypeError:
        values = None
    if values is None or len(values) != len(answers):
        what = f"{len(values)} rewards" if values is not None else f"{type(returned).__name__}"
        wanted = f"it returned {what} for {len(answers)} answers: it must return a list with one number for each."
        return _none(answers, RewardProblem(name, "length", wanted))
    scores = Scores([])
    for value, text in zip(values, answers.texts, strict=True):
        number = _number(value)
        scores.rewards.append(math.nan if number is None else number)
        if number is None and value is not None:  # None: the function does not apply to this answer
            sentence = f"it returned {value!r}, which is no finite number."
            scores.problems.append(RewardProblem(name, "value", sentence[:SENTENCE], text))
    return scores


SENTENCE = 200
LARGEST = 3e38  # a reward must fit into float32


def _number(value: Any) -> float | None:
    """A finite number, including NumPy's and torch's types but not strings; None for anything else."""
    if value is None or isinstance(value, str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if abs(number) <= LARGEST else None


def _none(answers: AnswerBatch, problem: RewardProblem) -> Scores:
    return Scores([math.nan] * len(answers), [problem])


def failed(name: str, kind: Kind, sentence: str, answers: AnswerBatch) -> Scores:
    """The result of a function that failed for all answers."""
    return _none(answers, RewardProblem(name, kind, sentence))
