"""Import what many of a project's files import from installed packages once, before each file is imported in a fork."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class _Import(NamedTuple):
    module: str
    name: str
    level: int  # the dots of a relative import


def load(files: Iterable[str]) -> None:
    """Import the packages that these files of the working directory import at their top, if forking allows it.

    This includes the imports of the project's own files that they import.

    >>> load(["train.py", "model.py"])  # from transformers import AutoModel
    """
    wanted = list(dict.fromkeys(other for file in _with_imported(files) for other in _of_others(file)))
    pid = os.fork()
    if pid == 0:
        _import(wanted)
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        _import(wanted)


def _import(names: Iterable[tuple[str, str]]) -> None:
    for module, name in names:
        with contextlib.suppress(Exception, SystemExit):
            loaded = importlib.import_module(module)
            getattr(loaded, name, None)  # packages such as transformers load these lazily


def _with_imported(files: Iterable[str]) -> list[Path]:
    """These files, and the project's own files that they import directly or indirectly."""
    paths = [Path(file) for file in files]
    seen = set(paths)
    for file in paths:  # grows during the loop
        for own in _own(file):
            if own not in seen:
                seen.add(own)
                paths.append(own)
    return paths


def _own(file: Path) -> Iterator[Path]:
    """The project's files that a file imports, including the packages that contain them."""
    for module, name, level in _imports(file):
        if level:
            start: Path | None = file.parents[level - 1] if level <= len(file.parents) else None
        else:
            start = _root(module.split(".")[0], file.parent)
        if start is None:
            continue
        place = start
        for part in [*(module.split(".") if module else []), name]:
            place = place / part
            yield from filter(_is_file, (place / "__init__.py", place.with_name(f"{part}.py")))


def _of_others(file: Path) -> Iterator[tuple[str, str]]:
    """The modules of other packages that a file imports, and names from them."""
    for module, name, level in _imports(file):
        top = module.split(".")[0]
        if not level and _root(top, file.parent) is None and _is_installed(top):
            yield module, name


@functools.cache
def _imports(file: Path) -> tuple[_Import, ...]:
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError):
        return ()
    imports: list[_Import] = []
    for node in body:  # grows during the loop
        if isinstance(node, ast.If | ast.Try):
            body += node.body
        elif isinstance(node, ast.Import):
            imports += [_Import(alias.name, "__name__", 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imports += [_Import(node.module or "", alias.name, node.level) for alias in node.names]
    return tuple(imports)


@functools.cache
def _root(package: str, folder: Path) -> Path | None:
    """The folder that contains the project's top-level packages and modules."""
    folders = [Path(), Path("src"), folder, *folder.parents]
    return next(
        (folder for folder in folders if (folder / package).is_dir() or _is_file(folder / f"{package}.py")), None
    )


@functools.cache
def _is_file(path: Path) -> bool:
    return path.is_file()


@functools.cache
def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # __main__
        return False
