"""The rules, one a file. NPK1xx rewrite; NPK2xx and above only find."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil

from npukit.migrate.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, sorted by code. Each is defined by one module, whose docstring becomes the rule's."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    for module in modules:
        module.rule.doc = inspect.cleandoc(module.__doc__ or "")
    return tuple(sorted((module.rule for module in modules), key=lambda rule: rule.code))


def rule_of(code: str) -> Rule | None:
    """Return the rule with this code, whatever its case.

    >>> rule_of("npk110").name
    'move-to-device'
    """
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
