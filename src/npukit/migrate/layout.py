"""Lay out changed statements as the project does: with its own formatter if that can be run, else with one line break.

    before:  dist.init_process_group("nccl", rank=rank, world_size=world_size)
    after:   dist.init_process_group(
                 "hccl" if hasattr(torch, "npu") else "nccl", rank=rank, world_size=world_size
             )

The formatter gets the changed statements and reads no file of the project; its settings are read here. A statement that
the formatter would have changed before the migration keeps its layout. Without a formatter, a line that became too long
is broken once, at its outermost bracket.
"""

from __future__ import annotations

import ast
import configparser
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from npukit.migrate.line_blocks import blocks
from npukit.migrate.options import toml_of
from npukit.migrate.partial_tree import changed_tree, first_line
from npukit.source import Document, PythonFile
from npukit.source.cache import per_project
from npukit.source.modules import text_of

_WIDEST, _NARROWEST = 120, 88
_SHORT = 100  # lines: shorter files say little about the authors' width
_SMALL = 12  # columns: shorter contents of brackets do not get their own line
_TAIL = 16  # columns: at most this may follow the bracket, such as ).to(DEVICE)
_SECONDS = 20
_HOOK = re.compile(r"\bid:\s*[\"']?(black|ruff-format|yapf)\b(.*?)(?=\bid:|\brepo:|\Z)", re.DOTALL)
_ARGUMENT = re.compile(r"--line-length[=\s,\"']*(\d+)|[\s\[\"']-l[\s,\"']*(\d+)")
_LENGTH = re.compile(r"^\s*(?:max[-_])?line[-_]length\s*=\s*(\d+)", re.MULTILINE)
_VALUE = re.compile(r"(\s*(?:(?:el)?if|while|return|[\w.\[\]'\"]+ =)) (?!.*\blambda\b)(.+?)(:?)")
_MARK, _AROUND, _ELSE, _BODY = "# npukit: lay out", "if NPUKIT_AROUND:", "if NPUKIT_ELSE:", "NPUKIT_BODY"
_USUAL = {"black": 88, "ruff": 88, "yapf": 79}


@dataclass(frozen=True)
class Formatter:
    """A formatter with its settings. Without a name, only the width that a linter checks is known."""

    name: str
    width: int
    magic_comma: bool = True
    quote: str = '"'
    style: str = field(default="", compare=False)  # yapf's settings as it reads them

    def run(self, text: str) -> str | None:
        """Format the text. Return None if the formatter cannot be run or rejects the text."""
        for command in self._commands():
            with contextlib.suppress(OSError, subprocess.TimeoutExpired, UnicodeError):
                done = subprocess.run(command, input=text.encode(), capture_output=True, cwd="/", timeout=_SECONDS)
                if done.returncode == 0:
                    return done.stdout.decode()
        return None

    def _commands(self) -> Iterator[Sequence[str]]:
        """Yield commands to try. Quotation marks are kept, and Python runs isolated from the project."""
        python, width = (sys.executable, "-I", "-m"), str(self.width)
        if self.name == "yapf" and find_spec("yapf"):
            yield (*python, "yapf", "--no-local-style", "--style", self.style)
        if self.name == "black" and find_spec("black"):
            magic = ["--skip-magic-trailing-comma"] if not self.magic_comma else []
            yield (*python, "black", "--config", os.devnull, "-q", "-S", "-l", width, *magic, "-")
        if self.name in ("black", "ruff") and (ruff := _ruff()):  # ruff's layout is black's
            magic = ["--config", f"format.skip-magic-trailing-comma={'false' if self.magic_comma else 'true'}"]
            quotes = ("--config", 'format.quote-style="preserve"')
            yield (ruff, "format", "--isolated", "--no-cache", "-q", "--line-length", width, *magic, *quotes, "-")


@lru_cache(maxsize=1)
def _ruff() -> str | None:
    """Return the ruff that is installed beside Python, else the one on the path."""
    beside = Path(sys.executable).with_name("ruff")
    executable = str(beside) if beside.exists() else shutil.which("ruff")
    return executable if executable and Path(executable).is_absolute() else None


def with_layout(before: Document, after: Document) -> Document:
    """Return the migrated file with its changed statements laid out as the project's formatter, or the file itself,
    does it.

    >>> with_layout(before, after).text
    """
    file = before.python
    if file is None or after.kind != "python" or "\r" in after.text:
        return after
    formatter = configured_formatter(before.path.parent.absolute(), before.root and before.root.absolute())
    formatted = _by_formatter(file, after, formatter) if formatter and formatter.name else None
    return formatted or _by_width(file, after, formatter.width if formatter else _own_width(before.text.split("\n")))


@per_project(maxsize=256)
def configured_formatter(folder: Path, root: Path | None = None) -> Formatter | None:
    """Return what formats the files of a folder, according to its configuration or that of a folder above, or None.

    >>> configured_formatter(Path("ColossalAI/colossalai"))
    Formatter(name='black', width=120, magic_comma=True, quote='"')
    """
    is_top = folder == folder.parent or (folder / ".git").exists() or (folder == root and not _in_git(folder))
    return _configured_in(folder) or (None if is_top else configured_formatter(folder.parent, root))


def _configured_in(folder: Path) -> Formatter | None:
    tools = toml_of(folder / "pyproject.toml").get("tool", {})
    hooks = dict(_HOOK.findall(text_of(folder / ".pre-commit-config.yaml")))
    ruff = toml_of(folder / "ruff.toml") or toml_of(folder / ".ruff.toml") or tools.get("ruff", {})
    black = tools.get("black", {} if "black" in hooks else None)
    yapf = tools.get("yapf") or _section(folder / ".style.yapf", "style") or _section(folder / "setup.cfg", "yapf")
    linted = [_LENGTH.search(text_of(folder / name)) for name in ("setup.cfg", ".flake8", "tox.ini")]
    width = next((int(match[1]) for match in linted if match), 0)
    arguments = _ARGUMENT.search(hooks.get("black", ""))
    if black is not None:
        length = black.get("line-length", black.get("line_length", arguments and int(arguments[1] or arguments[2])))
        skips = bool(black.get("skip-magic-trailing-comma")) or "skip-magic" in hooks.get("black", "")
        return Formatter("black", length or _USUAL["black"], not skips)
    if yapf or "yapf" in hooks:
        style = {str(key).lower(): str(value) for key, value in (yapf or {"based_on_style": "pep8"}).items()}
        limit = int(style.get("column_limit", 0)) or (80 if style.get("based_on_style") == "google" else 79)
        return Formatter("yapf", limit, style="{" + ", ".join(f"{k}: {v}" for k, v in style.items()) + "}")
    if ruff or "ruff-format" in hooks:
        layout = ruff.get("format", {})
        quote = "'" if layout.get("quote-style") == "single" else '"'
        magic = not layout.get("skip-magic-trailing-comma", False)
        return Formatter("ruff", ruff.get("line-length", width or _USUAL["ruff"]), magic, quote)
    return Formatter("", width) if width else None


def _section(path: Path, name: str) -> Mapping[str, str]:
    parser = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error):
        parser.read_string(text_of(path))
    return dict(parser[name]) if parser.has_section(name) else {}


@per_project(maxsize=64)
def _in_git(folder: Path) -> bool:
    return any((parent / ".git").exists() for parent in folder.parents)


def _by_formatter(before: PythonFile, after: Document, formatter: Formatter) -> Document | None:
    """Return the file with its changed statements formatted, or None if the formatter cannot be run."""
    old, new = _Statements(before.text, before.tree), _Statements(after.text, changed_tree(before, after.text))
    changed: dict[range, list[range]] = {}
    for kind, a, a_end, b, b_end in blocks(old.lines, new.lines):
        if kind in ("replace", "insert"):
            were, are = old.within(a, a_end), new.within(b, b_end)
            one_by_one = len(were) == len(are)
            for at, lines in enumerate(are):
                parts = [were[at]] if one_by_one else were
                if max(map(len, (lines, *parts))) > 1 or len(new.lines[lines.start]) > formatter.width:
                    changed[lines] = parts  # a single line that still fits needs no layout
    pieces = dict.fromkeys(old.as_program(lines) for were in changed.values() for lines in were)
    pieces.update(dict.fromkeys(new.as_program(lines) for lines in changed))
    formatted = _formatted(list(pieces), formatter)
    if formatted is None:
        return None
    done, width = list(new.lines), max(formatter.width, _own_width(old.lines))
    for lines, were in sorted(changed.items(), key=lambda item: -item[0].start):
        piece = new.as_program(lines)
        was_formatted = all(formatted[old.as_program(old_lines)] == old.as_program(old_lines) for old_lines in were)
        if was_formatted and formatted[piece] != piece and is_same_code(piece, formatted[piece]):
            done[lines.start : lines.stop] = _inner(formatted[piece]).split("\n")
        elif not was_formatted and len(lines) == 1 and len(new.lines[lines.start]) > width:
            done[lines.start : lines.stop] = _break_line(new.lines[lines.start], width)
    return replace(after, text="\n".join(done)) if done != new.lines else after


def _formatted(pieces: list[str], formatter: Formatter) -> dict[str, str] | None:
    """Format each piece of code, running the formatter only once."""
    text = "".join(f"{_MARK}\n{piece}\n" for piece in pieces)
    formatted_text = formatter.run(text) if pieces else ""
    texts = [piece.strip("\n") for piece in (formatted_text or "").split(_MARK)[1:]]
    return dict(zip(pieces, texts, strict=True)) if formatted_text is not None and len(texts) == len(pieces) else None


def _inner(piece: str) -> str:
    """Return a formatted statement without the blocks that were put around it."""
    return "\n".join(line for line in piece.split("\n") if not line.endswith((_AROUND, _BODY, _ELSE)))


def is_same_code(one: str, other: str) -> bool:
    """Return whether two layouts parse to the same code."""
    try:
        return ast.dump(ast.parse(one)) == ast.dump(ast.parse(other))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


class _Statements:
    """The lines of a file's simple statements, and of the heads of its compound statements."""

    def __init__(self, text: str, tree: ast.Module) -> None:
        self.lines = text.split("\n")
        self._tree = tree
        self._with_body: set[range] = set()

    def within(self, first: int, last: int) -> list[range]:
        """Return the line ranges of the statements that overlap some lines, counted from 0."""
        spans = (self._span(node) for node in _overlapping(self._tree, first, last))
        return [lines for lines in spans if lines and lines.start < last and lines.stop > first]

    def _span(self, node: ast.stmt) -> range | None:
        """Return the lines of a statement or of its head, or None if other code shares them."""
        body = getattr(node, "body", None)
        last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
        before = _split_at_column(self.lines[node.lineno - 1], node.col_offset)[0].strip()
        after = "" if body else _split_at_column(self.lines[last - 1], node.end_col_offset or 0)[1].strip()
        if last < node.lineno or before not in (("", "el") if body else ("",)) or (after and after[0] != "#"):
            return None
        lines = range(first_line(node) - 1, last)
        if body:
            self._with_body.add(lines)
        return lines

    def as_program(self, lines: range) -> str:
        """Return a statement as a program of its own, indented as in the file."""
        text = "\n".join(self.lines[lines.start : lines.stop])
        depth = (len(text) - len(text.lstrip())) // 4
        around = "".join(f"{'    ' * level}{_AROUND}\n" for level in range(depth))
        indent = "    " * depth
        if text.lstrip().startswith("elif "):
            around += f"{indent}{_ELSE}\n{indent}    {_BODY}\n"
        body = f"\n{indent}    {_BODY}" if lines in self._with_body else ""
        return f"{around}{text}{body}"


def _overlapping(parent: ast.AST, first: int, last: int) -> Iterator[ast.stmt]:
    """Yield the statements that overlap some lines. Of `try` and `match`, only the parts are statements here."""
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        for node in getattr(parent, name, ()):
            if isinstance(node, ast.match_case):
                yield from _overlapping(node, first, last)
            elif first_line(node) - 1 < last and (node.end_lineno or node.lineno) > first:
                if isinstance(node, ast.stmt) and not isinstance(node, (ast.Try, ast.Match)):
                    yield node
                yield from _overlapping(node, first, last)


def _split_at_column(line: str, column: int) -> tuple[str, str]:
    """Split a line at a column of the syntax tree, which counts bytes of UTF-8."""
    if not line.isascii():
        column = len(line.encode()[:column].decode(errors="ignore"))
    return line[:column], line[column:]


def _own_width(lines: list[str]) -> int:
    """Return the width that a file keeps to: its longest line within 88 and 120, or its third longest if longer."""
    code = sorted(len(line) for line in lines if not line.lstrip().startswith(("#", '"', "'")))
    if len(code) > 2 and code[-3] > _WIDEST:
        return code[-3]
    if len(lines) < _SHORT:
        return _WIDEST
    return max(_NARROWEST, max((length for length in code if length <= _WIDEST), default=0))


def _by_width(before: PythonFile, after: Document, width: int) -> Document:
    """Return the file with those lines broken that became longer than the width."""
    old, new = before.text.split("\n"), after.text.split("\n")
    lines: list[str] = []
    for kind, a, a_end, b, b_end in blocks(old, new):
        breaks = kind != "equal" and all(len(line) <= width for line in old[a:a_end])
        for at in range(b, b_end):
            is_long = breaks and len(new[at]) > width
            lines += _break_line(new[at], width) if is_long else [new[at]]
    return replace(after, text="\n".join(lines)) if lines != new else after


def _break_line(line: str, width: int) -> list[str]:
    """Break a line at its last call, or else put its value or condition in parentheses."""
    if "#" in line:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    body = "\n    pass" if line.endswith(":") else ""
    broken = _break_at_bracket(line, indent, width)
    is_same = is_same_code(line.strip() + body, "\n".join(piece.removeprefix(indent) for piece in broken) + body)
    return broken if is_same else [line]


def _break_at_bracket(line: str, indent: str, width: int) -> list[str]:
    match = _VALUE.fullmatch(line)
    brackets = [] if match and _outside_brackets(" else ", line) else list(_outermost(line))
    for start, end in reversed(brackets):
        is_value = match is not None and match.start(2) == start and line[start] == "[" and end == match.end(2) - 1
        if end - start > _SMALL and len(line) - end < _TAIL and (is_value or re.match(r"[\w\])]", line[start - 1])):
            inside = _break_alternatives(f"{indent}    {line[start + 1 : end].strip()}", width)
            return [line[: start + 1], *inside, f"{indent}{line[end:]}"]
    inside = _break_alternatives(f"{indent}    {match[2]}", width) if match else []
    return [f"{match[1]} (", *inside, f"{indent}){match[3]}"] if match else [line]


def _break_alternatives(line: str, width: int) -> list[str]:
    """Put each part of a choice or comprehension on its own line if the line is still too long."""
    marks = _outside_brackets(" else | for |, ", line)
    if len(line) <= width or not marks or any(line[at] == "," for at in marks):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    ends = [*marks, len(line)]
    return [line[: ends[0]], *(f"{indent}{line[a + 1 : b]}" for a, b in pairwise(ends))]


def _outside_brackets(pattern: str, line: str) -> list[int]:
    pairs = list(_outermost(line))
    return [m.start() for m in re.finditer(pattern, line) if not any(a < m.start() < b for a, b in pairs)]


def _outermost(line: str) -> Iterator[tuple[int, int]]:
    """Yield where the outermost brackets of a line open and close."""
    depth, start, quote = 0, 0, ""
    for at, char in enumerate(line):
        if quote:
            quote = "" if char == quote and line[at - 1] != "\\" else quote
        elif char in "\"'":
            quote = char
        elif char in "([{":
            start, depth = (at if depth == 0 else start), depth + 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                yield start, at
