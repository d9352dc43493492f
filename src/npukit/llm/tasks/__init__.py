"""Training tasks. Each is a class that contains everything about the task.

To add one, write a file with a subclass of `Task` and list it in TASKS. Its `name` is the value of `task:` in a
configuration.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any


@functools.cache
def known() -> dict[str, Any]:
    """Return all tasks by name.

    >>> known()["dpo"].rows_per_item
    2
    """
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    return {task.name: task for module in modules for task in getattr(module, "TASKS", ())}


def summaries() -> dict[str, str]:
    """Return a one-line description of each task, by its name."""
    return {name: task.summary for name, task in known().items()}


def using(options: str) -> tuple[str, ...]:
    """Return the names of the tasks that use a group of options.

    >>> using("preference")
    ('dpo', 'kto', 'rm')
    """
    return tuple(name for name, task in known().items() if options in task.uses)
