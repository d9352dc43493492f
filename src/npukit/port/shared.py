"""Import once what many files of a project import from installed packages, before each file is imported in a fork."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def load(files: Iterable[str]) -> None:
    """Import what these files of the working directory import at their top, where a fork can do so without crashing.

    >>> load(["train.py", "model.py"])  # from transformers import AutoModel
    """
    wanted = list(dict.fromkeys(name for file in files for name in _imported(Path(file))))
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
            getattr(loaded, name, None)  # which packages such as transformers load only now


def _imported(file: Path) -> Iterator[tuple[str, str]]:
    """The modules of other projects, and names of theirs, that a file imports."""
    try:
        body = ast.parse(file.read_bytes()).body
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in body:
        if isinstance(node, ast.Import):
            found = [(alias.name, "__name__") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found = [(node.module, alias.name) for alias in node.names]
        else:
            continue
        yield from ((module, name) for module, name in found if _is_installed(module.split(".")[0], file))


def _is_installed(package: str, file: Path) -> bool:
    folders = [Path(), Path("src"), *file.parents]
    is_own = any((folder / package).is_dir() or (folder / f"{package}.py").is_file() for folder in folders)
    try:
        return not is_own and importlib.util.find_spec(package) is not None
    except ValueError:  # __main__
        return False
