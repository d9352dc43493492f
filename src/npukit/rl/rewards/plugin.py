"""Reward functions in a Python file of the user's, as ms-swift's plug-ins or TRL's functions are written.

ms-swift's form puts classes into `orms`, which the file imports from swift; TRL's is a function of `prompts`,
`completions` and columns.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.rl import swift
from npukit.rl.plugins import accepted, cannot_run, functions_of, run_file
from npukit.rl.rewards.answers import AnswerBatch


@dataclass(frozen=True)
class PluginFunction:
    """A function of the user's; ms-swift's classes are given texts, TRL's functions what TRL gives them."""

    call: Callable[..., Any]
    is_trl: bool

    def __call__(self, answers: AnswerBatch) -> Any:
        """Its rewards for some answers, or an awaitable of them."""
        return self.call(**accepted(self.call, arguments(answers, self.is_trl)))


def arguments(answers: AnswerBatch, is_trl: bool) -> dict[str, Any]:
    """All that a function may ask for: the columns of the data, and what is known of the answers."""
    names = dict.fromkeys(name for row in answers.columns for name in row)
    columns = {name: [row.get(name) for row in answers.columns] for name in names}
    plain = [row.get("prompt") if isinstance(row.get("prompt"), str) else None for row in answers.columns]
    prompts = [text or list(prompt) for text, prompt in zip(plain, answers.prompts, strict=True)]
    spoken = [
        text if prompt else turns
        for text, prompt, turns in zip(answers.texts, plain, answers.answer_messages, strict=True)
    ]
    return {
        **columns,
        "prompts": prompts,
        "completions": spoken if is_trl else list(answers.texts),
        "messages": answers.conversations,
        "rollout_infos": [dict(infos) for infos in answers.infos] or [{} for _ in answers.texts],
        "completion_ids": [list(ids) for ids in answers.ids],
        "response_token_ids": [list(ids) for ids in answers.ids],
        "trainer_state": types.SimpleNamespace(global_step=answers.step),
    }


def missing(function: Callable[..., Any], columns: Sequence[str]) -> list[str]:
    """The arguments that a function must have and the data does not."""
    known = {*columns, *arguments(AnswerBatch([], [], [], []), False)}
    needed = inspect.signature(function).parameters.values()
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    must = (parameter.name for parameter in needed if parameter.kind in usual and parameter.default is parameter.empty)
    return [name for name in must if name not in known]


MakeFunction = Callable[[], PluginFunction]


def load_plugins(files: Sequence[Path], args: Any) -> dict[str, MakeFunction]:
    """Factories of the reward functions in some files, by name. Their code is run; ms-swift's classes are
    instantiated with `args`, and only those that are used, since others may need packages of their own.
    """
    functions: dict[str, MakeFunction] = {}
    for file in files:
        before = dict(swift.registry("orms"))
        module = run_file(file)
        functions |= {
            name: partial(PluginFunction, function, is_trl=True)
            for name, function in functions_of(module).items()
            if "completions" in inspect.signature(function).parameters
        }
        classes = {name: made for name, made in swift.registry("orms").items() if before.get(name) is not made}
        functions |= {name: partial(_made, file, kind, args) for name, kind in classes.items()}
    return functions


def without_functions(files: Sequence[Path]) -> NpukitError:
    """The error for files without a reward function."""
    return NpukitError(
        f"rewards.plugins: there is no reward function in {', '.join(map(str, files))}: write one with an argument "
        "named completions, or a class of ms-swift's form, and enter it in orms."
    )


def _made(file: Path, registered: Any, args: Any) -> PluginFunction:
    """ms-swift instantiates classes with its arguments; functions may be registered as well."""
    try:
        call = registered(**accepted(registered, {"args": args})) if isinstance(registered, type) else registered
        return PluginFunction(call, is_trl=False)
    except Exception as error:
        raise cannot_run(file, error) from error
