"""A stand-in for ms-swift, for plug-ins that import it where it is not installed.

It has the registries and the base classes of plug-ins. Everything else that a file imports exists by name, and fails
when it is used.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import logging
import sys
import types
from typing import Any

from npukit.rl.rewards.functions import accuracy
from npukit.rl.turns import openenv, swift_schedulers

PACKAGE = "swift"


class ORM:
    """The base class of ms-swift's reward classes."""

    def __init__(self, args: Any = None, **_: Any) -> None:
        self.args = args


class MathAccuracy(ORM):
    """The reward `accuracy` as a class."""

    def __call__(self, completions: list[str], solution: list[str], **_: Any) -> list[float]:
        return accuracy(completions, solution)


class _Registry(dict[str, Any]):
    """A registry of ms-swift's, or a function of it, which cannot be called."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("ms-swift is not installed")


ORMS = _Registry()
MULTI_TURNS = {
    "math_tip_trick": swift_schedulers.MathTipsScheduler,
    "gym_scheduler": swift_schedulers.GYMScheduler,
    "openenv_scheduler": openenv.OpenEnvScheduler,
}
REGISTRIES = {"orms": ORMS, "multi_turns": MULTI_TURNS, "envs": swift_schedulers.ENVS}
OF_SCHEDULERS = (
    swift_schedulers.RolloutInferRequest,
    swift_schedulers.RolloutScheduler,
    swift_schedulers.MultiTurnScheduler,
    swift_schedulers.Env,
    openenv.OpenEnvWrapper,
    *MULTI_TURNS.values(),
)
OWN = {
    **REGISTRIES,
    "ORM": ORM,
    "AsyncORM": ORM,
    "MathAccuracy": MathAccuracy,
    "get_logger": lambda *_: logging.getLogger(PACKAGE),
    **{made.__name__: made for made in OF_SCHEDULERS},
}


def registry(name: str) -> dict[str, Any]:
    """One of ms-swift's registries, whichever module a file imports it from.

    >>> sorted(registry("multi_turns"))
    ['gym_scheduler', 'math_tip_trick', 'openenv_scheduler']
    """
    ours = REGISTRIES[name]
    modules = [module for place, module in sys.modules.items() if place.startswith(f"{PACKAGE}.")]
    theirs = (getattr(module, name, None) for module in modules if not isinstance(module, _Module))
    return next((installed for installed in theirs if isinstance(installed, dict)), ours)


class _Module(types.ModuleType):
    """A module of ms-swift's that has every name."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        attribute = OWN[name] if name in OWN else type(name, (ORM,), {}) if name[:1].isupper() else _Registry()
        setattr(self, name, attribute)
        return attribute


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        ours = name == PACKAGE or name.startswith(f"{PACKAGE}.")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """The module has no code of its own."""


def stand_in() -> None:
    """Make `import swift` work, even next to a checkout of ms-swift whose requirements are not installed."""
    is_installed = any(importlib.metadata.distributions(name="ms-swift"))
    if not is_installed and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
