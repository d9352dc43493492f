"""The formatter that a project's files say it uses, and the width that it keeps lines to."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_LENGTH = re.compile(r"^\s*(?:max[-_])?line[-_]length\s*=\s*(\d+)|^\s*column_limit\s*=\s*(\d+)", re.M | re.IGNORECASE)
_ARGUMENT = re.compile(r"--line-length[=\s,\"']*(\d+)|[\s\[\"'](?:-l|-w)[\s,\"']*(\d+)")
_HOOK = re.compile(r"\bid:\s*[\"']?(black(?:-jupyter)?|ruff-format|yapf|isort)\b(.*?)(?=\bid:|\brepo:|\Z)", re.DOTALL)
_NO_MAGIC_COMMA = re.compile(r"skip[-_]magic[-_]trailing[-_]comma(?:\s*=\s*true)?(?!\s*=)|[\s\[\"']-C\b")
_SINGLE = re.compile(r"""\bdouble-quote-string-fixer\b|quote-style\s*=\s*["']single""")
_SECTIONS = {"[tool.black": "black", "[tool.ruff": "ruff", "[yapf": "yapf", "[style": "yapf", "[tool.yapf": "yapf"}
_COMMAND = re.compile(r"^[ \t-]*(?:run:[ \t]*)?(?:python3? -m )?black[ \t]+(?!--version)(.*)", re.MULTILINE)
_COMMANDS = ("*.sh", "Makefile", ".github/workflows/*.yml", ".github/workflows/*.yaml")
_FILES = ("pyproject.toml", "setup.cfg", "ruff.toml", ".style.yapf", ".flake8", ".pre-commit-config.yaml")
_USUAL = {"black": 88, "ruff": 88, "yapf": 79}


@dataclass(frozen=True)
class Formatter:
    """The formatter's name, the width it keeps to, whether a comma behind the last argument keeps one a line, and the
    quotation mark of strings."""

    name: str
    width: int
    magic_comma: bool = True
    quote: str = '"'


@lru_cache(maxsize=256)
def configured(folder: Path, root: Path | None = None) -> Formatter | None:
    """What formats the files of a folder, or the width that a linter allows (without a name); None if nothing says it.

    >>> configured(Path("ColossalAI/colossalai"))
    Formatter(name='black', width=120, magic_comma=True, quote='"')
    """
    texts = [text for name in _FILES if (text := _read(folder / name))]
    hooks = dict(_HOOK.findall(_read(folder / _FILES[-1])))
    names = [name for section, name in _SECTIONS.items() if any(section in text for text in texts)]
    names += [{"ruff-format": "ruff"}.get(hook, hook.split("-")[0]) for hook in hooks if hook != "isort"]
    is_top = folder == folder.parent or (folder / ".git").exists() or (folder == root and not _in_git(folder))
    if is_top and not names and (arguments := _told_to_black(folder)) is not None:
        names, hooks["black"] = ["black"], arguments
    told = [*map(_ARGUMENT.search, (hooks.get(hook, "") for hook in ("black", "isort"))), *map(_LENGTH.search, texts)]
    width = next((int(found[1] or found[2]) for found in told if found), 0)
    if width or names:
        name = names[0] if names else ""
        magic = not any(_NO_MAGIC_COMMA.search(text) for text in texts)
        return Formatter(name, width or _USUAL[name], magic, "'" if any(map(_SINGLE.search, texts)) else '"')
    return None if is_top else configured(folder.parent, root)


def _told_to_black(top: Path) -> str | None:
    """The arguments that the scripts and workflows of a project give black; None where they do not run it."""
    files = (each for pattern in _COMMANDS for each in sorted(top.glob(pattern)))
    return next((f" {found[1]}" for file in files if (found := _COMMAND.search(_read(file)))), None)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


@lru_cache(maxsize=64)
def _in_git(folder: Path) -> bool:
    return any((each / ".git").exists() for each in folder.parents)
