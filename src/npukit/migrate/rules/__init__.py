"""The rules, one a file. NPK1xx rewrite; NPK2xx and above only find."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Sequence

from npukit.errors import NpukitError
from npukit.migrate.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code. A module in this folder is a rule when it has a `rule`."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    found = [module.rule for module in modules if hasattr(module, "rule")]
    for rule, module in zip(found, (module for module in modules if hasattr(module, "rule")), strict=True):
        rule.doc = inspect.cleandoc(module.__doc__ or "")
    return tuple(sorted(found, key=lambda rule: rule.code))


def choose(
    select: Sequence[str] = (), ignore: Sequence[str] = (), among: tuple[str, ...] = ("NPK",)
) -> tuple[Rule, ...]:
    """The rules whose codes start with one of `select` (all when empty) and with none of `ignore`.

    >>> [rule.code for rule in choose(select=["NPK11"])]
    ['NPK110', 'NPK111']
    """
    rules = [rule for rule in all_rules() if rule.code.startswith(among)]
    for prefix in [*select, *ignore]:
        if not any(rule.code.startswith(prefix) for rule in rules):
            raise NpukitError(f"No rule's code starts with {prefix}: known are {', '.join(r.code for r in rules)}.")
    return tuple(
        rule
        for rule in rules
        if (not select or rule.code.startswith(tuple(select))) and not rule.code.startswith(tuple(ignore) or ("-",))
    )
