"""Reward functions in a user's Python file, written like ms-swift's plug-ins or TRL's functions.

ms-swift's form puts classes into `orms`, which the file imports from swift. TRL's is a function of `prompts`,
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
    """A user's function. ms-swift's classes receive texts; TRL's functions receive what TRL passes them."""

    call: Callable[..., Any]
    is_trl: bool

    def __call__(self, answers: AnswerBatch) -> Any:
        """Its rewards for some answers, or an awaitable of them."""
        return self.call(**accepted(self.call, arguments(answers, self.is_trl)))


def arguments(answers: AnswerBatch, is_trl: bool) -> dict[str, Any]:
    """Everything that a function may ask for: the data's columns, and what is known about the answers."""
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
    """The arguments that a function requires and the data does not have."""
    known = {*columns, *arguments(AnswerBatch([], [], [], []), False)}
    needed = inspect.signature(function).parameters.values()
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    must = (parameter.name for parameter in needed if parameter.kind in usual and parameter.default is parameter.empty)
    return [name for name in must if name not in known]


MakeFunction = Callable[[], PluginFunction]


def load_plugins(files: Sequence[Path], args: Any) -> dict[str, MakeFunction]:
    """Factories of the reward functions in some files, by name. The files are executed. ms-swift's classes are
    instantiated with `args`, but only those that are used, since others may need more packages.
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
        functions |= {name: partial(_instantiate, file, kind, args) for name, kind in classes.items()}
    return functions


def without_functions(files: Sequence[Path]) -> NpukitError:
    """The error for files without a reward function."""
    return NpukitError(
        f"rewards.plugins: there is no reward function in {', '.join(map(str, files))}: write one with an argument "
        "named completions, or a class of ms-swift's form, and enter it in orms."
    )


def _instantiate(file: Path, registered: Any, args: Any) -> PluginFunction:
    """Create one: ms-swift instantiates classes with its arguments, but functions may be registered as well."""
    try:
        call = registered(**accepted(registered, {"args": args})) if isinstance(registered, type) else registered
        return PluginFunction(call, is_trl=False)
    except Exception as error:
        raise cannot_run(file, error) from error
