"""Find the dependencies in requirements files, pyproject.toml, setup.py, conda environments and `pip install` lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from npukit.facts.versions import key
from npukit.source import Document, Place

_NAME = r"([A-Za-z][A-Za-z0-9._-]*)(?:\[[^\]]*\])?"
_VERSION = r"([ \t]*(?:[=<>!~]=?=?[ \t]*[\w.*+!-]+[ \t]*,?[ \t]*)*)"
_LINE = re.compile(rf"^[ \t]*{_NAME}{_VERSION}", re.MULTILINE)
_LISTED = re.compile(rf"""(?:[\[,]|^)[ \t]*["']{_NAME}{_VERSION}(?:;[^"']*)?["']""", re.MULTILINE)
_QUOTED = re.compile(rf"""["']{_NAME}{_VERSION}(?:;[^"']*)?["']""")
_CONDA = re.compile(rf"^[ \t]*-[ \t]*(?:[\w-]+::)?{_NAME}{_VERSION}", re.MULTILINE)
_INSTALL = re.compile(r"\b(?:pip3?|uv pip|conda|mamba)\s+install\b(.*?)(?=$|&&|;|\|)", re.MULTILINE)
_WORD = re.compile(rf"""(?:(?<=\s)|(?<=["'])){_NAME}{_VERSION}(?=["']|\s|$)""")

_HELD_BY = ("requirements*.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment*.y*ml", "requirements/*.txt")
_DOCS = re.compile(r"docs?(?:[^a-z]|$)")  # requirements of the documentation, not of the program
_COMMENT = re.compile(r"(?:^|\s)#.*", re.MULTILINE)
# torch>=2.2,<=2.5.1; conda's pytorch=1.12.1; Poetry's torch = "2.1.2" and torch = {version = "<2.5"}
_TORCH = re.compile(
    r"""(?<![\w-])(?:py)?torch\s*(?:=\s*\{\s*version\s*)?(?:=\s*["'])?((?:\s*[<>!~=^]{1,3}\s*["']?\d[\w.*+]*\s*,?)+)"""
)
# Other sources for a project's torch: documents, environments, images and CI.
_DOCUMENTS = (
    *("*.md", "*.rst", "README*.txt", "INSTALL*.txt"),
    *(f"{folder}/{name}" for folder in ("doc", "docs", "docs/*", "readme") for name in ("*.md", "*.rst")),
)
_MACHINES = (
    *("Dockerfile*", "*.Dockerfile", "docker/*Dockerfile*", "docker/*/Dockerfile*", ".devcontainer/*Dockerfile*"),
    *("environment*.y*ml", "conda*.y*ml", "*/environment*.y*ml", "Makefile", "*.sh", "tox.ini", "noxfile.py"),
    *(".github/workflows/*.y*ml", ".gitlab-ci.y*ml", ".circleci/config.yml", ".travis.yml", "azure-pipelines*.yml"),
)
_HISTORY = re.compile(r"change|history|news|release|contribut|license|code_of|security|citation|roadmap", re.IGNORECASE)
_INSTALLATION = re.compile(
    r"(?:\d+[-_])?(?:readme|install|get.*start|quick.*start|setup|require|environment|prepar|index)", re.IGNORECASE
)
_MAX_FILES = 64
_MAX_CHARACTERS = 1 << 18
# PyTorch 1.8+, pytorch==1.12.1, torch >= 2.0, PyTorch (1.7.1), PyTorch version 1.10
_SPEAKS_OF_TORCH = re.compile(
    r"(?<![\w-])(?:py)?torch\b[ \t]*(?:version )?[(`]?(?:[>=~]=|≥|=)?[ \t]*v?([012]\.\d+)", re.IGNORECASE
)
# FROM pytorch/pytorch:1.8.0-cuda11.1, ARG PYTORCH="1.6.0", torch-version: ["1.13.1", "2.0"], pip install torch==1.9
_SETS_TORCH = re.compile(
    r"""(?<![\w-])(?:py)?torch(?:[-_]?version)?["']?[ \t]*(?:[>=~]=|[:=])[ \t]*"""
    r"""(\[[^\]\n]*\]|["']?v?[012]\.\d+)""",
    re.IGNORECASE,
)
_RELEASE = re.compile(r"(?<![\w.])v?([012]\.\d+)")
_LOWER = re.compile(r"""(?<![<>!~=])(?:={1,3}|~=|>=?|\^)\s*["']?(\d+)(?:\.(\d+))?""")
_UPPER = re.compile(r"""(?<![<>!~=])(={1,3}|~=|<=?)\s*["']?(\d+)\.(\d+)(\.0*[1-9])?""")


@dataclass(frozen=True)
class Requirement:
    """A required package, and where it is required."""

    name: str
    version: str
    span: tuple[int, int]
    command: tuple[Place, str] | None = None  # the place and the text of a notebook's command

    def where(self, document: Document) -> Place | tuple[Document, tuple[int, int]]:
        return self.command[0] if self.command else (document, self.span)

    @property
    def evidence(self) -> str:
        return self.command[1] if self.command else ""


def requirements(document: Document) -> Iterator[Requirement]:
    """Every dependency that the file names."""
    if document.kind == "requirements":
        yield from _found(_LINE, document.text)
    elif document.path.name in ("pyproject.toml", "Pipfile"):
        yield from _found(_LISTED, document.text)
    elif document.path.name == "setup.py":
        yield from _in_setup(document)
    elif document.kind == "yaml" and "dependencies:" in document.text:
        start = document.text.index("dependencies:")
        yield from _found(_CONDA, document.text, start)
    elif document.kind in ("shell", "docker"):
        yield from _installed(document.text)
    elif document.book:
        for cell, line, text in document.book.commands:
            command = Place(document.path, line, cell=cell), text.strip()
            yield from (replace(needed, command=command) for needed in _installed(text))


def _installed(text: str) -> Iterator[Requirement]:
    """Yield what shell commands install."""
    joined = text.replace("\\\r\n", "   ").replace("\\\n", "  ")  # the same length: offsets stay
    for match in _INSTALL.finditer(joined):
        if not joined[joined.rfind("\n", 0, match.start()) + 1 :].lstrip().startswith("#"):
            yield from _found(_WORD, joined, match.start(1), match.end(1))


def _in_setup(document: Document) -> Iterator[Requirement]:
    """Yield the requirements in strings of arguments and variables that are named after requirements."""
    file = document.python
    for node in file.nodes if file else ():
        name = node.arg if isinstance(node, ast.keyword) else ""
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        if (
            file
            and isinstance(node, (ast.keyword, ast.Assign))
            and re.search("require|depend", name or "", re.IGNORECASE)
        ):
            yield from _found(_QUOTED, document.text, *file.span(node.value))


def meant_for_cuda(document: Document) -> bool:
    """Return whether a file is the variant for CUDA among several, by its name or folder: docker/docker-cuda/..."""
    return any(re.search("cuda|rocm|gpu|nvidia", part.lower()) for part in document.path.parts[-3:])


def _found(pattern: re.Pattern[str], text: str, start: int = 0, end: int | None = None) -> Iterator[Requirement]:
    for match in pattern.finditer(text, start, len(text) if end is None else end):
        version = match[2].strip()
        yield Requirement(match[1], version, (match.start(1), match.end(2 if version else 1)))


def newest_allowed(version: str) -> str:
    """Return the newest minor release below the upper bounds of a version, or "".

    >>> newest_allowed("<2.0.0,>=1.12.1")
    '1.13'
    """
    return min(_newest(version), key=key, default="")


def allowed_torch(root: Path) -> tuple[str, str]:
    """Return the oldest and newest torch that a project's requirements allow, each "" if there is no such bound.

    Without a lower bound, the oldest torch in the project's documents, images and CI files is taken.

    >>> allowed_torch(Path("project"))  # requirements.txt: torch>=1.12,<2.0
    ('1.12', '1.13')
    """
    oldest = newest = ""
    for file in (path for pattern in _HELD_BY for path in sorted(root.glob(pattern))):
        if file.is_file() and not _DOCS.search(file.stem):  # neither folders nor pipes
            text = _COMMENT.sub("", file.read_text(encoding="utf-8", errors="replace"))
            for match in _TORCH.finditer(text):
                oldest = oldest or max(_oldest(match[1]), key=key, default="")
                newest = newest or newest_allowed(match[1])
    return oldest or _mentioned(root), newest


def _mentioned(root: Path) -> str:
    """Return the oldest torch that a project's documents, environments, images and CI files mention."""
    about = (path for path in _files(root, _DOCUMENTS) if _is_about_installation(path, root))
    documents = (_text(path) for path in islice(about, _MAX_FILES))
    machines = (_text(path) for path in islice(_files(root, _MACHINES), _MAX_FILES))
    releases = [release for text in documents for release in _SPEAKS_OF_TORCH.findall(text)]
    values = [value for text in machines for value in _SETS_TORCH.findall(_COMMENT.sub("", text))]
    releases += [release for value in values for release in _RELEASE.findall(value)]
    return min(releases, key=key, default="")


def _files(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """Yield the regular files with these names."""
    return (path for pattern in patterns for path in sorted(root.glob(pattern)) if path.is_file())


def _text(file: Path) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return lines.read(_MAX_CHARACTERS)
    except OSError:
        return ""


def _is_about_installation(file: Path, root: Path) -> bool:
    """Return whether a document describes how to install the project, judging by its name and place."""
    if _HISTORY.search(file.stem):
        return False
    return file.parent == root or bool(_INSTALLATION.match(file.stem))


def _oldest(specifier: str) -> Iterator[str]:
    """Yield the minor release of each lower bound."""
    for major, minor in _LOWER.findall(specifier):
        yield f"{major}.{minor or 0}"


def _newest(specifier: str) -> Iterator[str]:
    """Yield the newest minor release below each upper bound."""
    for operator, major, minor, patch in _UPPER.findall(specifier):
        if operator != "<" or patch:
            yield f"{major}.{minor}"
        elif int(minor):
            yield f"{major}.{int(minor) - 1}"
        elif major == "2":
            yield "1.13"
