"""Imports of the libraries in facts/libraries.yaml: how much each matters and what to do about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from npukit.facts.libraries import Library, Verdict, imported, modules
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.migrate.training import tolerates_failure
from npukit.report import Finding, Severity
from npukit.source import PythonFile
from npukit.source.cache import per_project

STATUS = {
    "replace": "does not run on NPUs",
    "blocks": "does not run on NPUs",
    "adapter": "needs an additional package on NPUs",
    "partial": "runs partly on NPUs",
}


@dataclass(eq=False, kw_only=True)
class LibraryRule(Rule):
    """A rule that reports imports of libraries with certain verdicts."""

    words: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...]

    def __post_init__(self) -> None:
        self.modules = modules(*self.verdicts)
        self.on(ast.Import, ast.ImportFrom)(self._imported)

    def _imported(self, node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
        for library in (each for each in imported_libraries(node, file) if each.verdict in self.verdicts):
            when, severity = import_state(node, file)
            if library.verdict in ("adapter", "partial"):  # an import that may fail is not an error
                is_note = library.verdict == "partial" or severity is Severity.note
                when, severity = "", Severity.note if is_note else self.severity
            yield self.finding(
                (file, node),
                f"{library.name} {STATUS[library.verdict]}{when}",
                why=f"{library.why}. {_state_here(node, library, file)}",
                remedy=advice(library),
                subject=library.name,
                severity=severity,
            )


def imported_libraries(node: ast.Import | ast.ImportFrom, file: PythonFile) -> list[Library]:
    """Return the known libraries that a statement imports. The project's own modules of these names do not count."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif node.level == 0 and node.module:
        modules = [f"{node.module}.{alias.name}" for alias in node.names]
    else:
        modules = []
    known = {module: library for module in modules if (library := imported(module))}
    return list(
        dict.fromkeys(
            known[module] for module in known if not _is_own(module.split(".")[0], file.path.parent, file.names.root)
        )
    )


@per_project(maxsize=4096)
def _is_own(module: str, folder: Path, root: Path | None) -> bool:
    if module in folder.absolute().parts:
        return True
    return any((base / module).is_dir() or (base / f"{module}.py").is_file() for base in (folder, root) if base)


def import_state(node: ast.AST, file: PythonFile) -> tuple[str, Severity]:
    """Return how much an import matters: always needed, needed in a function only, or optional."""
    if tolerates_failure(node, file):
        return " (optional)", Severity.note
    if not isinstance(file.function(node), ast.Module):
        return " (imported on use)", Severity.warning
    return "", Severity.error


def _state_here(node: ast.Import | ast.ImportFrom, library: Library, file: PythonFile) -> str:
    """Return which version of the library is installed, and whether the file uses what it imports."""
    version = installed_version(library)
    installed = f"Version {version} is installed." if version else "It is not installed."
    names = {alias.asname or alias.name.split(".")[0] for alias in node.names}
    used = names & file.names.read or "*" in names or file.path.name == "__init__.py"
    return installed if used else f"{installed} This file imports it without using it."


def advice(library: Library) -> str:
    """Return what to do about a library."""
    parts = [f"Install {library.needs}." if library.needs else "", f"Use {library.instead}." if library.instead else ""]
    otherwise = "Try the parts that you use on an NPU." if library.verdict == "partial" else "Remove it on NPUs."
    return " ".join(filter(None, parts)) or otherwise


@cache
def installed_version(library: Library) -> str | None:
    """Return the installed version of a library according to its package metadata, or None.

    >>> installed_version(imported("accelerate"))
    '1.2.0'
    """
    from importlib import metadata

    for package in library.packages:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None
