"""The rules. NPK1xx rewrite, one a file; NPK2xx and above only find, several of one subject in a file."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil

from npukit.migrate.rule import Rule, described_rules


@functools.cache
def all_rules() -> tuple[Rule, ...]:
    """Return every rule, by code: those of modules, whose docstrings are theirs, and those of facts/rules.yaml."""
    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    defining = [module for module in modules if hasattr(module, "rule")]
    for module in defining:
        module.rule.doc = inspect.cleandoc(module.__doc__ or "")
    rules = (*(module.rule for module in defining), *described_rules().values())
    return tuple(sorted(rules, key=lambda rule: rule.code))


def rule_of(code: str) -> Rule | None:
    """Return the rule with this code, whatever its case.

    >>> rule_of("npk110").name
    'move-to-device'
    """
    return next((rule for rule in all_rules() if rule.code == code.upper()), None)
