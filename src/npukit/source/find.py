"""Find the files of a project that npukit can read, and determine their kinds."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

_SKIPPED = {"node_modules", "__pycache__", "site-packages", "venv"}
_KINDS = {
    ".py": "python",
    ".pyi": "python",
    ".ipynb": "notebook",
    ".sh": "shell",
    ".bash": "shell",
    ".slurm": "shell",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".json": "json",
    ".toml": "toml",
    ".dockerfile": "docker",
    ".cu": "cuda",
    ".cuh": "cuda",
    ".cpp": "cpp",
    ".cc": "cpp",
    ".h": "cpp",
    ".hpp": "cpp",
}


def kind_of(path: Path) -> str | None:
    """A file's kind by its name: python, notebook, shell, yaml, json, toml, docker, requirements, cuda, cpp or None.

    >>> kind_of(Path("docker/Dockerfile.gpu"))
    'docker'
    """
    name = path.name.lower()
    if name.startswith(("dockerfile", "containerfile")):
        return "docker"
    if path.suffix == ".txt":
        return "requirements" if "requirements" in name or path.parent.name == "requirements" else None
    return _KINDS.get(path.suffix.lower())


def find(paths: Iterable[Path]) -> Iterator[Path]:
    """Every source file under the paths, once, in a fixed order; hidden folders and installed packages are skipped.

    A path that is itself a file is always included. Broken links and unreadable folders are included so that they can
    be reported. Other links, pipes, sockets and devices are not.
    """
    seen: set[Path] = set()
    for path in paths:
        for file in [path] if path.is_file() else _walk(path):
            if file not in seen and (file.is_dir() or (kind_of(file) and _is_own_file(file))):
                seen.add(file)
                yield file


def _is_own_file(file: Path) -> bool:
    mode = file.lstat().st_mode
    return stat.S_ISREG(mode) or (stat.S_ISLNK(mode) and not file.exists())


def _walk(root: Path) -> Iterator[Path]:
    unreadable: list[Path] = []
    # os.walk does not follow links, so cyclic links are harmless.
    for folder, folders, names in os.walk(root, onerror=lambda error: unreadable.append(Path(error.filename))):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _SKIPPED)
        for name in sorted(names):
            yield Path(folder, name)
    yield from unreadable
