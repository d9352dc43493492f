"""Run Python files of the user's and look up their contents."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from npukit.errors import NpukitError
from npukit.rl import swift


def run_file(file: Path) -> ModuleType:
    """Run a file, which may import ms-swift whether or not it is installed."""
    swift.stand_in()
    spec = importlib.util.spec_from_file_location(f"npukit_plugin_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise NpukitError(f"rewards.plugins: there is no Python file {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise cannot_run(file, error) from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def cannot_run(file: Path, error: Exception) -> NpukitError:
    """The message about a file that raised an exception."""
    return NpukitError(f"rewards.plugins: {file} cannot be run: {type(error).__name__}: {error}")


def functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that a file defines itself, except those whose names begin with _."""
    return {
        name: function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }


def accepted(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """The arguments that a function accepts."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return given
    return {name: value for name, value in given.items() if name in parameters}
