"""Load torch_npu once per package instead of once per file, if `import torch` does not load it.

Rules see one file at a time and add `try: import torch_npu` to each file that they change. Here these lines move to the
package's __init__.py, which runs before the package's files and before the scripts that import the package.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from npukit.migrate.change import Change, with_moved_places
from npukit.migrate.rule import described
from npukit.migrate.styles.helpers import LOAD_TORCH_NPU
from npukit.report import Finding
from npukit.source import Place, PythonFile, Unreadable, read

_IMPORTED = re.compile(r"^(?:from|import)[ \t]+(\w+)", re.MULTILINE)


def load_torch_npu_once(
    changes: Sequence[Change], left: Sequence[Finding], root: Path
) -> tuple[tuple[Change, ...], tuple[Finding, ...]]:
    """Return the changes with torch_npu loaded by packages rather than files, and the findings at their new places.

    >>> load_torch_npu_once(changes, left, root)[0][0].path
    PosixPath('project/package/__init__.py')
    """
    loading = [change for change in changes if _lines(change.before) in change.after]
    imported = {name for change in changes for name in _IMPORTED.findall(change.after)}
    package_of = {change.path: package for change in loading if (package := _package(change, root, imported))}
    packages = {package.name for package in package_of.values()}
    now = {change.path: change for change in changes}
    for change in loading:
        above = change.after.split(_lines(change.before))[0]
        if change.path in package_of or not packages.isdisjoint(_IMPORTED.findall(above)):
            now[change.path] = replace(change, after=change.after.replace(_lines(change.before), "", 1))
    for package in dict.fromkeys(package_of.values()):
        if start := _starting(package / "__init__.py", now):
            now[start.path] = start
    return tuple(now.values()), _moved(left, {change.path: change for change in changes}, now)


def _lines(before: str) -> str:
    """Return the lines that the portable style adds to load torch_npu."""
    newline = "\r\n" if "\r\n" in before else "\n"
    return newline + newline.join((*LOAD_TORCH_NPU, ""))


def _package(change: Change, root: Path, imported: set[str]) -> Path | None:
    """Return the package whose __init__.py runs before a file. Return None if the file may be run as a script."""
    if "__main__" in change.before:
        return None
    around = [folder for folder in change.path.parents if folder != root and folder.is_relative_to(root)]
    packages = [folder for folder in around if _can_start(folder / "__init__.py") and folder.name in imported]
    return packages[-1] if packages else None


def _can_start(path: Path) -> bool:
    try:
        return read(path).python is not None
    except (Unreadable, OSError):
        return False


def _starting(path: Path, changes: Mapping[Path, Change]) -> Change | None:
    """Return the package's __init__.py with the lines above its imports, or None if it loads torch_npu already."""
    document = read(path)
    change = changes.get(path) or Change(path, document.text, document.text, document.encoding, ())
    file = PythonFile(path, change.after)
    if file.imports("torch_npu"):
        return None
    start = _above_imports(file)
    lines = file.newline.join((*LOAD_TORCH_NPU, *(["", ""] if change.after[start:] else [""])))
    finding = described("NPK105").finding(Place(path), "torch_npu is not loaded with torch")
    return replace(change, after=f"{change.after[:start]}{lines}{change.after[start:]}", fixed=(*change.fixed, finding))


def _above_imports(file: PythonFile) -> int:
    """Return the offset of the first statement below the docstring and `from __future__`."""
    for node in file.tree.body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and getattr(node, "module", "") != "__future__":
            return file.line_start(node)
    return len(file.text)


def _moved(left: Sequence[Finding], before: Mapping[Path, Change], after: Mapping[Path, Change]) -> tuple[Finding, ...]:
    findings: list[Finding] = []
    for finding in left:
        old = before.get(finding.place.file) if finding.place else None
        new = after[old.path] if old else None
        if old and new and old.after != new.after:
            findings += with_moved_places(
                [finding], *(read(side.path, side.after.encode(side.encoding)) for side in (old, new))
            )
        else:
            findings.append(finding)
    return tuple(findings)
