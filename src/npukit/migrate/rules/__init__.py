"""The rules, one a file. NPK1xx rewrite; NPK2xx and above only find."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Sequence

from npukit.errors import NpukitError
from npukit.migrate.rule import Rule


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code."""
    return rules_of(("NPK",))


@functools.cache
def rules_of(prefixes: tuple[str, ...]) -> tuple[Rule, ...]:
    """The rules whose codes start so, by code. Only their modules are imported: npk101_cuda_functions has NPK101."""
    names = (info.name for info in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names if name.upper().startswith(prefixes)]
    for module in modules:
        module.rule.doc = inspect.cleandoc(module.__doc__ or "")
    return tuple(sorted((module.rule for module in modules), key=lambda rule: rule.code))


def choose(
    select: Sequence[str] = (), ignore: Sequence[str] = (), among: tuple[str, ...] = ("NPK",)
) -> tuple[Rule, ...]:
    """The rules whose codes start with one of `select` (all when empty) and with none of `ignore`.

    >>> [rule.code for rule in choose(select=["NPK11"])]
    ['NPK110', 'NPK111']
    """
    rules = rules_of(among)
    for prefix in [*select, *ignore]:
        if not any(rule.code.startswith(prefix) for rule in rules):
            raise NpukitError(f"No rule's code starts with {prefix}: known are {', '.join(r.code for r in rules)}.")
    return tuple(
        rule
        for rule in rules
        if (not select or rule.code.startswith(tuple(select))) and not rule.code.startswith(tuple(ignore) or ("-",))
    )
