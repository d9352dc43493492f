"""Libraries of facts/libraries.yaml that a project imports (NPK401, NPK402, NPK405) or requires (NPK403), in a version
that is too old (NPK407), and a torch that NPUs cannot use (NPK404).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from npukit.facts.compatibility import pythons_by_torch, releases
from npukit.facts.libraries import Library, Verdict, imported, libraries, modules, packaged
from npukit.facts.versions import key
from npukit.migrate.goal import OLDEST_TORCH_NPU
from npukit.migrate.requirements import Requirement, meant_for_cuda, newest_allowed, requirements
from npukit.migrate.rule import Document, Findings, Goal, Place, PythonFile, Severity, Where, described
from npukit.migrate.training import tolerates_failure
from npukit.source.cache import per_project

Import = ast.Import | ast.ImportFrom
VERDICTS: dict[str, tuple[Verdict, ...]] = {
    "NPK401": ("replace",),
    "NPK402": ("adapter", "partial"),
    "NPK405": ("blocks",),
}
_STATUS = {
    "replace": "does not run on NPUs",
    "blocks": "does not run on NPUs",
    "adapter": "needs an additional package on NPUs",
    "partial": "runs partly on NPUs",
}
_SEVERITY = {"replace": Severity.error, "blocks": Severity.error, "adapter": Severity.warning, "partial": Severity.note}
_PART_OF_CUDA = "It is part of CUDA"
_CUDA_PACKAGES = ("nvidia-", "nvidia_", "cuda-", "cuda_", "cupy-", "cudatoolkit", "pytorch-cuda")
_TEXTS = ("requirements", "toml", "yaml", "shell", "docker", "setup", "notebook")
_UPPER = re.compile(r"(?:==|~=|<=|<)\s*(\d+(?:\.\d+)*)")
_INDEX = re.compile(r"https?://download\.pytorch\.org/whl/(?:nightly/)?cu\d+\S*")
described("NPK407").modules = frozenset(
    name.split(".")[0] for library in libraries() if library.since for name in library.imports
)


def _report_imports(code: str) -> None:
    """Let a rule report imports of the libraries with its verdicts."""
    rule = described(code)
    rule.modules = modules(*VERDICTS[code])

    @rule.on(ast.Import, ast.ImportFrom)
    def check(node: Import, file: PythonFile, goal: Goal) -> Findings:
        for library in (each for each in _imported(node, file) if each.verdict in VERDICTS[code]):
            when, severity = _import_state(node, file)
            if library.verdict in ("adapter", "partial"):  # an import that may fail is not an error
                is_note = library.verdict == "partial" or severity is Severity.note
                when, severity = "", Severity.note if is_note else rule.severity
            yield rule.finding(
                (file, node),
                f"{library.name} {_STATUS[library.verdict]}{when}",
                why=f"{library.why}. {_state_here(node, library, file)}",
                remedy=_advice(library),
                subject=library.name,
                severity=severity,
            )


for _code in VERDICTS:
    _report_imports(_code)


def _imported(node: Import, file: PythonFile) -> list[Library]:
    """Return the known libraries that a statement imports. The project's own modules of these names do not count."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    else:
        names = [f"{node.module}.{alias.name}" for alias in node.names] if node.level == 0 and node.module else []
    known = {name: library for name in names if (library := imported(name))}
    return list(
        dict.fromkeys(
            known[name] for name in known if not _is_own(name.split(".")[0], file.path.parent, file.names.root)
        )
    )


@per_project(maxsize=4096)
def _is_own(module: str, folder: Path, root: Path | None) -> bool:
    if module in folder.absolute().parts:
        return True
    return any((base / module).is_dir() or (base / f"{module}.py").is_file() for base in (folder, root) if base)


def _import_state(node: ast.AST, file: PythonFile) -> tuple[str, Severity]:
    """Return how much an import matters: always needed, needed in a function only, or optional."""
    if tolerates_failure(node, file):
        return " (optional)", Severity.note
    if not isinstance(file.function(node), ast.Module):
        return " (imported on use)", Severity.warning
    return "", Severity.error


def _state_here(node: Import, library: Library, file: PythonFile) -> str:
    """Return which version of the library is installed, and whether the file uses what it imports."""
    version = installed_version(library)
    installed = f"Version {version} is installed." if version else "It is not installed."
    names = {alias.asname or alias.name.split(".")[0] for alias in node.names}
    used = names & file.names.read or "*" in names or file.path.name == "__init__.py"
    return installed if used else f"{installed} This file imports it without using it."


def _advice(library: Library) -> str:
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


@described("NPK403").on_text(*_TEXTS)
def requirement(document: Document, goal: Goal) -> Findings:
    parts_of_cuda = 0
    for needed in requirements(document):
        library = packaged(needed.name) or _of_cuda(needed.name)
        if library is None or library.verdict not in _SEVERITY:
            continue
        parts_of_cuda += library.why == _PART_OF_CUDA
        if library.why == _PART_OF_CUDA and parts_of_cuda > 1:
            continue  # they come and go with a torch for CUDA: one of them says it
        yield described("NPK403").finding(
            needed.where(document),
            f"{library.name} {_STATUS[library.verdict]}",
            why=f"{library.why}.",
            remedy=_advice(library),
            evidence=needed.evidence,
            severity=Severity.note if meant_for_cuda(document) else _SEVERITY[library.verdict],
        )


def _of_cuda(package: str) -> Library | None:
    """Return a package that is part of CUDA as a library, else None."""
    if not package.lower().startswith(_CUDA_PACKAGES):
        return None
    return Library(package, (), "replace", _PART_OF_CUDA, instead="CANN, which is installed outside of Python")


@described("NPK404").on_text(*_TEXTS)
def pinned_torch(document: Document, goal: Goal) -> Findings:
    released = {release.torch.split("+")[0] for release in releases()} | set(pythons_by_torch())
    known = {version for version in released if key(version) >= key(OLDEST_TORCH_NPU)}
    severity = Severity.note if meant_for_cuda(document) else Severity.error
    for needed in requirements(document):
        if needed.name in ("torch", "pytorch") and (wrong := _wrong_torch(needed, known)):
            what, remedy = wrong
            yield described("NPK404").finding(
                needed.where(document), what, remedy=remedy, evidence=needed.evidence, severity=severity
            )
    for where, evidence in _indexes(document):
        yield described("NPK404").finding(
            where,
            "this package index serves CUDA builds",
            why="torch_npu works with the CPU build of torch.",
            remedy="Use https://download.pytorch.org/whl/cpu, or the default index.",
            evidence=evidence,
            severity=severity,
        )


def _wrong_torch(needed: Requirement, known: set[str]) -> tuple[str, str] | None:
    """Return what is wrong with a required torch and what to require instead, or None."""
    pin = re.match(r"\s*={1,3}\s*v?(\d+\.\d+(?:\.\d+)?)(\+cu\d+)?", needed.version)
    if pin and pin[2]:
        return f"torch{pin[2]} is a CUDA build", f"Require torch=={pin[1]} and the torch_npu release for it."
    newest = newest_allowed(needed.version)
    is_unknown = pin and not any(version.startswith(pin[1]) for version in known)
    if not is_unknown and not (newest and key(newest) < key(OLDEST_TORCH_NPU)):
        return None
    which = pin[1] if pin else f"{newest} or older"
    others = ", ".join(list(pythons_by_torch())[:4])
    return f"there is no torch_npu for torch {which} on PyPI", f"Pin a torch release that has one: {others} …"


def _indexes(document: Document) -> Iterator[tuple[Where, str]]:
    """Yield where an index of CUDA builds is named, with the command of a notebook that names it."""
    if document.book:
        for cell, line, text in document.book.commands:
            if _INDEX.search(text):
                yield Place(document.path, line, cell=cell), text.strip()
    elif document.kind != "python":
        yield from (((document, match.span()), "") for match in _INDEX.finditer(document.text))


@described("NPK407").on_text(*_TEXTS)
def old_requirement(document: Document, goal: Goal) -> Findings:
    for needed in requirements(document):
        library, newest = packaged(needed.name), _UPPER.search(needed.version)
        if library and library.since and newest and _number(newest[1]) < _number(library.since):
            yield described("NPK407").finding(
                needed.where(document),
                f"{library.name} {newest[1]} does not support NPUs yet",
                why=f"NPU support was added in {library.since}.",
                remedy=f"Require {needed.name}>={library.since}.",
                evidence=needed.evidence,
                severity=Severity.note if meant_for_cuda(document) else None,
            )


@described("NPK407").on(ast.Import, ast.ImportFrom)
def old_installation(node: Import, file: PythonFile, goal: Goal) -> Findings:
    for library in _imported(node, file):
        version = installed_version(library) if library.since else None
        if version and _number(version) < _number(library.since):
            yield described("NPK407").finding(
                (file, node),
                f"{library.name} {version} is installed and does not support NPUs yet",
                why=f"NPU support was added in {library.since}.",
                remedy=f"Install {library.packages[0]}>={library.since}.",
                severity=_import_state(node, file)[1],
            )


def _number(version: str) -> list[int]:
    """Return the leading numbers of a version."""
    return [int(part) for part in re.match(r"\d*(?:\.\d+)*", version)[0].split(".") if part]  # type: ignore[index]
