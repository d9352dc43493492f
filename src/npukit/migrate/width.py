"""Statements that were changed are laid out anew, as the project's formatter would.

before:  dist.init_process_group("nccl", rank=rank, world_size=world_size)
after:   dist.init_process_group(
             dist.get_default_backend_for_device(DEVICE), rank=rank, world_size=world_size
         )

A file's width is what the project's formatter is told, else that of its longest line, between 88 and 120; 120 where it
is short, and that of its third longest where its authors keep to no width. Only where black or ruff is configured is
what fits on one line again joined, and only what was laid out as they do it. What was longer before and does not
outgrow the file, has a comment, or has no bracket to break at stays on one line.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise

from npukit.migrate.aligned import blocks
from npukit.migrate.formatter import Formatter, configured
from npukit.migrate.like_black import Style, laid_out
from npukit.migrate.like_yapf import aligned, opened
from npukit.source import Document, Edit, PythonFile

_WIDEST, _NARROWEST = 120, 88
_SHORT = 100  # lines: a file with fewer says little about the width that its authors keep to
_OWN = tuple(f"{torch}{name} = " for torch in ("", "TORCH_") for name in ("DEVICE", "ACCELERATOR", "DEVICE_TYPE"))
_LAST_CHOICE = re.compile(r"else (?=[\"']cuda)(.*)")  # of a device; yapf leaves it alone in brackets of its own
_OPEN, _CLOSE = "([{", ")]}"
_MOST_CLOSED = 4
_TWINS = re.compile(
    r"""( *)(os\.environ\[["']CUDA_\w+["']\]) = (os\.environ\[["']\w+["']\]) = (?!os\.environ)(.*[^(\[{,\\])"""
)
_SIMPLE = re.compile(r"""[\w.]+|"[^"]*"|'[^']*'""")
_LONGEST = 400  # lines of a statement
_SMALL = 20  # columns: brackets with less in them are not worth a line
_CONDITION = re.compile(r"(?=(?:if|elif|while) .*:$|return |[^ ]+ = )([^ ]+(?: =)?) (.+?)(:?)")
_WEAKER = ("if", "lambda", ",", ";", "=")  # what binds less than `and` and `or`
_MAY_GO_ON = re.compile(r"""[(\[{\\]|\"\"\"|'''|^\s*(?:#|$)""")  # a bracket, or a string of several lines
_BRACKET = re.compile(r"\(\)|[()\[\]{}]")  # one that gets something in it may be broken
_BEGINS = re.compile(r"(?:return|[\w.\[\]'\"]+ =) (?=\S)")


_LINK = re.compile(r"[)\]]\.\w+(?=\()")  # f(x).g(y).h(z) is a chain of two, which formatters put into parentheses


def fitted(before: Document, after: Document) -> Document:
    """The migrated file with its changed statements laid out as the project's formatter, or the file itself, has it.

    >>> fitted(before, after).text
    """
    if after.kind != "python" or "\r" in after.text:
        return after
    old, new = before.text.split("\n"), after.text.split("\n")
    told = configured(before.path.parent.absolute(), before.root and before.root.absolute())
    formatter = told or Formatter("", _own_width(old))
    joins = formatter.name in ("black", "ruff")
    width = formatter.width
    if not joins and not any(len(line) > width for line in {*new} - {*old}):
        return after
    edits = list(_edits(old, new, formatter, before, after, width if told else _WIDEST))
    return after.edited(edits) if edits else after


def _own_width(lines: list[str]) -> int:
    code = sorted(len(line) for line in lines if not line.lstrip().startswith(("#", '"', "'")))
    if len(code) > 2 and code[-3] > _WIDEST:
        return code[-3]
    if len(lines) < _SHORT:
        return _WIDEST
    return max(_NARROWEST, max((each for each in code if each <= _WIDEST), default=0))


def _edits(
    old: list[str], new: list[str], formatter: Formatter, before: Document, after: Document, constants: int
) -> Iterator[Edit]:
    """What is laid out anew; constants that a migration adds only where they are wider than they may be."""
    starts = [0]
    for line in new:
        starts.append(starts[-1] + len(line) + 1)
    widest, width, done = max(map(len, old)), formatter.width, 0
    joins = formatter.name in ("black", "ruff")
    style = Style(width, formatter.magic_comma, formatter.name == "ruff", 0 if joins else _SMALL)
    for kind, a, a_end, b, b_end in blocks(old, new):
        if kind not in ("replace", "insert"):
            continue
        longest_before = max((len(line) for line in old[a:a_end]), default=0)
        line_by_line = a_end - a == b_end - b
        for number in range(b, b_end):
            line = new[number]
            grown = width < len(line) and (longest_before <= width or len(line) > widest + _SMALL)
            if number < done or not line or not (grown or (joins and kind == "replace")):
                continue
            if line.startswith(_OWN):
                if len(line) <= constants:
                    continue
                constant = laid_out(line, style) if joins else _LAST_CHOICE.sub(r"else (\n    \1)", line)
                if constant not in (None, line):
                    yield Edit(starts[number], starts[number] + len(line), constant or "")
                continue
            # The file as it was is parsed already; what it became is parsed only where lines came or went.
            was = _start(before, number - b + a if line_by_line else a)
            start = was + b - a if line_by_line else _start(after, number)
            end = _end(new, start)
            if not grown and (
                end == start + 1 or (line_by_line and _stays(old[was : was + end - start], new[start:end], width))
            ):
                continue
            text = "\n".join(new[start:end])
            if grown and (twins := _TWINS.fullmatch(text)):
                yield Edit(starts[start], starts[end] - 1, _two_statements(twins))
            elif formatter.name != "yapf" and not _closes_behind(before) and _is_laid_out(old, was, style, joins):
                done = end
                if (lines := laid_out(text, style)) not in (None, text):
                    yield Edit(starts[start], starts[end] - 1, lines or "")
            elif grown and formatter.name == "yapf" and (found := aligned(new[start:end], number - start, width)):
                yield Edit(starts[number - found[0]], starts[number + 1] - 1, "\n".join(found[1]))
            elif grown:
                lines_of = [] if start == number else _one_a_line(line, width)
                if broken := lines_of or _broken(line, width, formatter.name) or opened(line, width):
                    broken = _closed_behind(broken, width) if _closes_behind(before) else broken
                    yield Edit(starts[number], starts[number] + len(line), "\n".join(broken))


def _is_laid_out(lines: list[str], start: int, style: Style, by_formatter: bool) -> bool:
    """Whether a statement was written as black writes it, so that it may be once more."""
    text = "\n".join(lines[start : _end(lines, start)])
    return laid_out(text, style) == text or not (by_formatter or "\n" in text)


def _stays(old: list[str], new: list[str], width: int) -> bool:
    """Whether the lines of a statement stay laid out: none is too long, and nothing before a bracket became shorter, so
    that what did not fit still does not."""
    return all(
        was == now or (len(was) <= len(now) <= width and _has_grown(was, now))
        for was, now in zip(old, new, strict=False)
    )


def _has_grown(was: str, now: str) -> bool:
    """
    >>> _has_grown("x = f(torch.cuda.g())", "x = f(ACCELERATOR.g())"), _has_grown("f(x).cuda(0)", "f(x).to(DEVICE)")
    (True, False)
    """
    before, after = list(_BRACKET.finditer(was)), list(_BRACKET.finditer(now))
    return len(before) == len(after) and all(
        one[0] == other[0] and one.start() <= other.start() for one, other in zip(before, after, strict=True)
    )


def _two_statements(twins: re.Match[str]) -> str:
    """os.environ["CUDA_..."] = os.environ["ASCEND_..."] = value, which is longer than a line"""
    indent, old, new, value = twins.groups()
    return f"{indent}{old} = {value}\n{indent}{new} = {value if _SIMPLE.fullmatch(value) else old}"


def _start(document: Document, number: int) -> int:
    """The line, counted from 0, on which the statement of this one begins."""
    file = document.python
    lines = _statement_lines(file) if file is not None else (0,)
    return lines[max(bisect_right(lines, number) - 1, 0)]


def _end(lines: list[str], start: int) -> int:
    """The line behind the statement that begins on this one."""
    if not _MAY_GO_ON.search(lines[start]):
        return start + 1
    try:
        rest = (f"{line}\n" for line in islice(lines, start, start + _LONGEST))
        for token in tokenize.generate_tokens(rest.__next__):
            if token.type == tokenize.NEWLINE:
                return start + token.end[0]
    except (tokenize.TokenError, IndentationError):
        pass
    return start + 1


def _closes_behind(document: Document) -> bool:
    """Whether a file closes calls behind their arguments, as yapf does, rather than on lines of their own."""
    file = document.python
    return file is not None and _behind(file)


@lru_cache(maxsize=2)
def _behind(file: PythonFile) -> bool:
    lines = file.text.split("\n")
    calls = (each for each in file.by_type.get(ast.Call, ()) if each.end_lineno > each.lineno)  # type: ignore[attr-defined]
    ends = [lines[call.end_lineno - 1].encode()[: call.end_col_offset].strip() for call in calls]  # type: ignore[attr-defined]
    told = [end for end in ends if not end.startswith((b"]", b"}"))]  # as both do with a list
    return 2 * sum(end.startswith(b")") for end in told) < len(told)


def _closed_behind(lines: list[str], width: int) -> list[str]:
    """Lines that end with one of brackets alone, without it; above a block deeper than what is in that.

    >>> _closed_behind(["f(", "    a, b", ")"], 79)
    ['f(', '    a, b)']
    """
    first, *rest, last = lines
    if not rest or last.strip()[0] not in _CLOSE:
        return lines
    deeper = "    " if last.endswith(":") else ""
    closed = [first, *(f"{deeper}{line}" for line in (*rest[:-1], rest[-1].removesuffix(",") + last.strip()))]
    return closed if max(map(len, closed)) <= width else lines


@lru_cache(maxsize=2)
def _statement_lines(file: PythonFile) -> tuple[int, ...]:
    statements = [node for kind, nodes in file.by_type.items() if issubclass(kind, ast.stmt) for node in nodes]
    decorators = (each for node in statements for each in getattr(node, "decorator_list", ()))
    return tuple(sorted({0, *(node.lineno - 1 for node in (*statements, *decorators))}))


def _broken(line: str, width: int, formatter: str = "") -> list[str]:
    """The same code on several lines; nothing where that cannot be done simply."""
    text = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    pairs = _pairs(text)
    if pairs is None:
        return []
    if formatter and (wrapped := _in_parentheses(text, indent, pairs, width)):
        return wrapped
    for start, end, commas in sorted((pair for pair in pairs if pair[1] - pair[0] >= _SMALL), reverse=True):
        head, inside, tail = indent + text[: start + 1], text[start + 1 : end], indent + text[end:]
        step = indent + "    "
        if not inside or max(len(head), len(tail)) > width:
            continue
        if len(step) + len(inside) <= width:
            return [head, step + inside, tail]
        parts = _split(inside, [each - start - 1 for each in commas])
        if commas and all(len(step) + len(part) < width for part in parts):
            return [head, *(f"{step}{part}," for part in parts), tail]
    return _at_operators(text, indent, width)


def _at_operators(text: str, indent: str, width: int) -> list[str]:
    """A condition, a line for each part of it, between parentheses of its own."""
    found = _CONDITION.fullmatch(text)
    if not found or len(_parts(found[2], *_WEAKER)) > 1:
        return []
    parts = _parts(found[2], "and", "or")
    if len(parts) < 2 or max(map(len, parts)) + len(indent) + 4 > width:
        return []
    return [f"{indent}{found[1]} (", *(f"{indent}    {part}" for part in parts), f"{indent}){found[3]}"]


def _in_parentheses(text: str, indent: str, pairs: list[tuple[int, int, list[int]]], width: int) -> list[str]:
    """A value that goes on behind its last bracket, such as a choice, or a chain of calls, as a whole between
    parentheses of its own."""
    begins = _BEGINS.match(text)
    if not begins or not pairs or pairs[0][0] < begins.end():
        return []
    value = text[begins.end() :]
    opened = {start - begins.end() for start, _, _ in pairs}
    links = [match.start() + 1 for match in _LINK.finditer(value) if match.end() in opened]
    if len(links) < 2 and not text[pairs[-1][1] + 1 :].strip(":"):
        return []
    broken = (
        [value[a:b] for a, b in pairwise([0, *links, len(value)])] if len(links) > 1 else _parts(value, "if", "else")
    )
    parts = [value] if len(indent) + 4 + len(value) <= width else broken
    if max(map(len, parts)) + len(indent) + 4 > width:
        return []
    return [f"{indent}{begins[0]}(", *(f"{indent}    {part}" for part in parts), f"{indent})"]


def _parts(text: str, *words: str) -> list[str]:
    """The parts of an expression, each but the first beginning with one of the words.

    >>> _parts("f(x) if x else g(y)", "if", "else")
    ['f(x)', 'if x', 'else g(y)']
    """
    starts, depth = [0], 0
    for token in tokenize.generate_tokens(io.StringIO(f"({text})\n").readline):
        depth += (token.string in _OPEN) - (token.string in _CLOSE) if token.type == tokenize.OP else 0
        if token.string in words and depth == 1:
            starts.append(token.start[1] - 1)
    return [text[a:b].strip() for a, b in zip(starts, [*starts[1:], len(text)], strict=True)]


def _one_a_line(line: str, width: int) -> list[str]:
    """Arguments that stood on one line, within brackets that open above it."""
    whole = line.strip()
    indent = line[: len(line) - len(line.lstrip())]
    closed = (whole[: len(whole) - number] for number in range(_MOST_CLOSED))  # those that open above may end here
    text = next((each for each in closed if whole[len(each) :].strip(")") == "" and _pairs(f"({each})")), whole)
    pairs = _pairs(f"({text})")
    if pairs is None or len(pairs) != 1:
        return []
    if not pairs[0][2]:
        loops = _parts(text, "for")
        parts = loops if len(loops) == 2 else _parts(text, "if", "else")
        lines = [f"{indent}{part}" for part in (*parts[:-1], parts[-1] + whole[len(text) :])]
        return lines if (loops == parts or len(parts) == 3) and max(map(len, lines)) <= width else []
    parts = _split(text, [each - 1 for each in pairs[0][2]])
    comma = "," if text.endswith(",") or text == whole else ""  # as formatters write it above a bracket that closes
    last = f"{indent}{parts[-1]}{comma}{whole[len(text) :]}"
    lines = [*(f"{indent}{part}," for part in parts[:-1]), last]
    return lines if max(map(len, lines)) <= width else []


def _is_list(text: str, opened: int) -> bool:
    """Whether a square bracket opens a list rather than a subscript."""
    before = text[:opened].rstrip()
    return text[opened] == "[" and before.endswith(("=", "(", ",", "return", " in"))


def _split(text: str, commas: list[int]) -> list[str]:
    parts = [text[a:b].strip() for a, b in zip([0, *(each + 1 for each in commas)], [*commas, len(text)], strict=True)]
    return [part for part in parts if part]


def _pairs(text: str) -> list[tuple[int, int, list[int]]] | None:
    """The outermost parentheses of a line: where each opens, closes, and has commas; None if it is not a whole one."""
    found: list[tuple[int, int, list[int]]] = []
    stack: list[int] = []
    commas: list[int] = []
    in_string = in_lambda = in_comprehension = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
            name = tokenize.tok_name[token.type]
            in_string += (name == "FSTRING_START") - (name == "FSTRING_END")
            if name == "COMMENT":
                return None
            in_lambda += (token.string == "lambda") - (token.string == ":" and in_lambda > 0)
            if token.string == "for" and len(stack) == 1:
                in_comprehension, commas = 1, []
            if name != "OP" or in_string:
                continue
            at = token.start[1]
            if token.string in _OPEN:
                if not stack:
                    in_comprehension, commas = 0, []
                stack.append(at)
            elif token.string in _CLOSE:
                opened = stack.pop()
                if not stack and (token.string == ")" or _is_list(text, opened)):
                    found.append((opened, at, commas))
            elif token.string == "," and len(stack) == 1 and not in_lambda and not in_comprehension:
                commas.append(at)
    except (tokenize.TokenError, IndentationError, IndexError):
        return None
    return None if stack else found
