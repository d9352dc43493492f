"""Stand-ins for packages that are not installed, so that modules which need them can still be imported."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types
from abc import ABCMeta
from collections.abc import Callable, Sequence
from typing import Any


class _Kind(ABCMeta):
    """The metaclass of stand-ins, which can be called, subclassed (also with ABC) and subscripted, with any name."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)

    def __getitem__(cls, _: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())

    def __or__(cls, _: Any) -> Any:
        return cls

    __ror__ = __or__


class _Anything:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __call__(self, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else self  # a decorator with arguments

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __getitem__(self, _: Any) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter(())


def stand_in(name: str) -> Any:
    """A class that stands for a function, a class, a decorator or a constant of this name."""

    def __new__(cls: Any, *args: Any, **_: Any) -> Any:
        # As a decorator, it returns the decorated object.
        is_decorated = len(args) == 1 and isinstance(args[0], types.FunctionType | type) and cls is made
        return args[0] if is_decorated else object.__new__(cls)

    made: Any = _Kind(name, (_Anything,), {"__new__": __new__})
    return made


class _Module(types.ModuleType):
    __version__ = "9.9.9"  # newer than any version that a module requires

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(name)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder for modules that no other finder found, and for their submodules."""

    def __init__(self, tops: frozenset[str]) -> None:
        self.tops = tops

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not any(f"{name}.".startswith(f"{top}.") for top in self.tops):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(packages: frozenset[str]) -> StandIns:
    """Let these packages be imported although they are not installed.

    >>> install(frozenset({"mmcv"}))
    >>> import mmcv.ops
    """
    finder = StandIns(packages)
    sys.meta_path.append(finder)
    metadata: Any = importlib.metadata
    metadata.version = _version_of(packages, metadata.version)
    return finder


def _version_of(packages: frozenset[str], real: Callable[[str], str]) -> Callable[[str], str]:
    def version(name: str) -> str:
        try:
            return real(name)
        except importlib.metadata.PackageNotFoundError:
            if name.replace("-", "_") in packages:
                return _Module.__version__
            raise

    return version
