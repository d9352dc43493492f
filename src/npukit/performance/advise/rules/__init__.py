"""The rules of `advise`, one a file."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil

from npukit.performance.advise.rule import Rule


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code: one a module, whose docstring is the rule's."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    for module in modules:
        module.rule.doc = inspect.cleandoc(module.__doc__ or "")
    return tuple(sorted((module.rule for module in modules), key=lambda rule: rule.code))


def rule_of(code: str) -> Rule | None:
    """The rule with this code, in whatever case it is written.

    >>> rule_of("npk803").name
    'data-loader'
    """
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
