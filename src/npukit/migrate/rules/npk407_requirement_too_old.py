"""Libraries pinned to, or installed in, a version older than their NPU support.

bad (requirements.txt):
    accelerate==0.12.0

good (requirements.txt):
    accelerate>=0.25
"""

from __future__ import annotations

import ast
import re

from npukit.facts.libraries import libraries, packaged
from npukit.migrate.imported_libraries import import_state, imported_libraries, installed_version
from npukit.migrate.requirements import meant_for_cuda, requirements
from npukit.migrate.rule import Document, Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK407",
    "requirement-too-old",
    words=(),
    text_words=("==", "<", "~="),
    modules=frozenset(name.split(".")[0] for library in libraries() if library.since for name in library.imports),
    why="NPU support was added in a later version.",
    remedy="Require the version that added NPU support, or a later one.",
    effort=Effort(60, 5),
)

_UPPER = re.compile(r"(?:==|~=|<=|<)\s*(\d+(?:\.\d+)*)")


@rule.on_text("requirements", "toml", "yaml", "shell", "docker", "setup", "notebook")
def check(document: Document, goal: Goal) -> Findings:
    for needed in requirements(document):
        library = packaged(needed.name)
        newest = _UPPER.search(needed.version)
        if library is None or not library.since or not newest or _number(newest[1]) >= _number(library.since):
            continue
        yield rule.finding(
            needed.where(document),
            f"{library.name} {newest[1]} does not support NPUs yet",
            why=f"NPU support was added in {library.since}.",
            remedy=f"Require {needed.name}>={library.since}.",
            evidence=needed.evidence,
            severity=Severity.note if meant_for_cuda(document) else None,
        )


@rule.on(ast.Import, ast.ImportFrom)
def check_import(node: ast.Import | ast.ImportFrom, file: PythonFile, goal: Goal) -> Findings:
    for library in imported_libraries(node, file):
        version = installed_version(library) if library.since else None
        if version and _number(version) < _number(library.since):
            yield rule.finding(
                (file, node),
                f"{library.name} {version} is installed and does not support NPUs yet",
                why=f"NPU support was added in {library.since}.",
                remedy=f"Install {library.packages[0]}>={library.since}.",
                severity=import_state(node, file)[1],
            )


def _number(version: str) -> list[int]:
    """Return the leading numbers of a version."""
    return [int(part) for part in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if part]  # type: ignore[index]
