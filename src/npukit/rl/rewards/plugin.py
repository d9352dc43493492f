"""Reward functions in a Python file of the user's, as ms-swift's plug-ins or TRL's functions are written.

ms-swift's form puts classes into `orms`, which the file imports from swift; TRL's is a function of `prompts`,
`completions` and columns. Where ms-swift is not installed, a stand-in takes its place: what a file imports of it
besides `orms` and the base classes is there by name, and fails when it is used.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import logging
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npukit.errors import NpukitError
from npukit.rl.rewards.answers import AnswerBatch

PACKAGE = "swift"
REGISTRIES = ("swift.rewards", "swift.plugin", "swift.plugin.orm", "swift.rewards.orm")


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
    conversations = [[*prompt, _said(text)] for prompt, text in zip(answers.prompts, answers.texts, strict=True)]
    plain = [row.get("prompt") if isinstance(row.get("prompt"), str) else None for row in answers.columns]
    prompts = [text or list(prompt) for text, prompt in zip(plain, answers.prompts, strict=True)]
    spoken = [text if prompt else [_said(text)] for text, prompt in zip(answers.texts, plain, strict=True)]
    return {
        **columns,
        "prompts": prompts,
        "completions": spoken if is_trl else list(answers.texts),
        "messages": conversations,
        "completion_ids": [list(ids) for ids in answers.ids],
        "response_token_ids": [list(ids) for ids in answers.ids],
        "trainer_state": types.SimpleNamespace(global_step=answers.step),
    }


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}


def missing(function: Callable[..., Any], columns: Sequence[str]) -> list[str]:
    """The arguments that a function must have and the data does not."""
    known = {*columns, *arguments(AnswerBatch([], [], [], []), False)}
    needed = inspect.signature(function).parameters.values()
    usual = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    must = (parameter.name for parameter in needed if parameter.kind in usual and parameter.default is parameter.empty)
    return [name for name in must if name not in known]


def load_plugins(files: Sequence[Path], args: Any) -> dict[str, PluginFunction]:
    """The reward functions of some files by name. Their code is run, and ms-swift's classes are made with `args`."""
    _stand_in()
    functions: dict[str, PluginFunction] = {}
    for file in files:
        functions |= _load(file, args)
    return functions


def _load(file: Path, args: Any) -> dict[str, PluginFunction]:
    spec = importlib.util.spec_from_file_location(f"npukit_rewards_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise NpukitError(f"rewards.plugins: there is no Python file {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        before = dict(_registry())
        spec.loader.exec_module(module)
        classes = {name: registered for name, registered in _registry().items() if before.get(name) is not registered}
        made = {name: _made(registered, args) for name, registered in classes.items()}
    except Exception as error:
        raise NpukitError(f"rewards.plugins: {file} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    plain = {
        name: PluginFunction(function, is_trl=True)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and _is_reward(function)
    }
    return plain | {name: PluginFunction(function, is_trl=False) for name, function in made.items()}


def _is_reward(function: Callable[..., Any]) -> bool:
    return not function.__name__.startswith("_") and "completions" in inspect.signature(function).parameters


def _made(registered: Any, args: Any) -> Callable[..., Any]:
    """ms-swift makes classes with its arguments; functions may stand there as well."""
    if not isinstance(registered, type):
        return registered  # type: ignore[no-any-return]
    make: Callable[..., Callable[..., Any]] = registered
    return make(**accepted(make, {"args": args}))


class ORM:
    """What ms-swift's reward classes derive from."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args


class _Registry(dict[str, Any]):
    """A registry of ms-swift's, or a function of it, which cannot be called."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("ms-swift is not installed")


ORMS = _Registry()


def _registry() -> dict[str, Any]:
    """`orms`, wherever the file has it from."""
    for name in REGISTRIES:
        registry = getattr(sys.modules.get(name), "orms", None)
        if isinstance(registry, dict):
            return registry
    return ORMS


class _Module(types.ModuleType):
    """A module of ms-swift's in which every name is found."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = {"orms": ORMS, "ORM": ORM, "AsyncORM": ORM, "get_logger": lambda *_: logging.getLogger(PACKAGE)}
        attribute = own.get(name) or (type(name, (ORM,), {}) if name[:1].isupper() else _Registry())
        setattr(self, name, attribute)
        return attribute


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        ours = name == PACKAGE or name.startswith(f"{PACKAGE}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """There is nothing in it."""


def _stand_in() -> None:
    """From now on `import swift` works; an installed one comes first."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
