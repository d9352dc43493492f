"""A line that became too long, broken as yapf does it: behind a comma, what follows aligned with the open bracket.

before:  x = f(('a', DEVICE.type), ('b', DEVICE.type))
after:   x = f(('a', DEVICE.type),
               ('b', DEVICE.type))

Arguments with names are not aligned, but stand on lines of their own. A condition gets brackets, in which its parts are
aligned.
"""

from __future__ import annotations

import io
import re
import tokenize
from dataclasses import dataclass

_OPEN, _CLOSE = "([{", ")]}"
_CONDITION = re.compile(r"( *)((?:if|elif|while|return|[\w.]+ =) )(?!.* = )(.*?)(:?)")
_ONE_TUPLE = re.compile(r"( *[@\w.= ]+\(\[\(.*\))(\]\):?)")
_STEP = 4


@dataclass(frozen=True)
class _Break:
    """Where a line may be broken: how deep in brackets, at which column, and the one that the rest is aligned with."""

    depth: int
    at: int
    column: int
    is_last: bool = False  # of all: before a tuple of a tuple in a list, which is broken itself


def aligned(lines: list[str], number: int, width: int) -> tuple[int, list[str]] | None:
    """A line of a statement in two, and how many before it they replace; None where alignment does not serve.

    >>> aligned(["x = f((a, b), (c, d))"], 0, 20)
    (0, ['x = f((a, b),', '      (c, d))'])
    """
    line, above = lines[number], lines[number - 1] if number else ""
    if "#" in line + above or line.endswith("\\") or (number and _holds_several(line)):
        return None
    if above.endswith(",") and (found := _in_two(f"{above} {line.lstrip()}", width, ",")):
        return 1, found
    condition = _in_brackets(line, width) if len(lines) == 1 else None
    in_list = "\n".join(lines[:number]).endswith("[") or above.startswith(line[: len(line) - len(line.lstrip())] + "(")
    found = condition or _list_closed_below(line, width) or _in_two(line, width, ",", in_list=in_list)
    return (0, found) if found else None


def _list_closed_below(line: str, width: int) -> list[str] | None:
    """f([('a', ('b', 'c'))]), a list of one tuple, of which all but the last brackets fit"""
    found = _ONE_TUPLE.fullmatch(line)
    if not found or len(found[1]) > width or any(each.depth == 2 for each in _breaks(line, (",",))):
        return None
    return [found[1], " " * (found[1].index("[(") + 1) + found[2]]


def opened(line: str, width: int) -> list[str]:
    """A line broken behind its brackets, as many as are needed; nothing where that does not serve.

    >>> opened("x = f(a=g(b=1))", 12)
    ['x = f(', '    a=g(b=1))']
    """
    if len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip()) + _STEP * (2 if line.endswith(":") else 1)
    for at in _openings(line):
        rest = " " * indent + line[at:].lstrip()
        if at <= width and len(rest) < len(line) and (lines := opened(rest, width)):
            return [line[:at], *lines]
    return []


def _holds_several(line: str) -> bool:
    """Whether arguments of brackets that were opened above stand on one line."""
    depth = 0
    for token in _tokens(line):
        depth += (token.string in _OPEN) - (token.string in _CLOSE) if token.type == tokenize.OP else 0
        if token.string == "," and depth == 0 and token.line[token.end[1] :].strip():
            return True
    return False


def _in_two(line: str, width: int, *words: str, in_list: bool = False) -> list[str] | None:
    for each in sorted(_breaks(line, words, in_list), key=lambda each: (each.is_last, each.depth, -each.at)):
        first, rest = line[: each.at].rstrip(), " " * each.column + line[each.at :].lstrip()
        if max(len(first), len(rest)) <= width:
            return [first, rest]
    return None


def _breaks(line: str, words: tuple[str, ...], in_list: bool = False) -> list[_Break]:
    """Where brackets that the line opens, and in which nothing has a name, hold one of these words."""
    margin = len(line) - len(line.lstrip())
    stack: list[int] = []
    found: list[_Break] = []
    named: set[int] = set()
    for token in _tokens(line):
        at = token.start[1] + margin
        if token.type == tokenize.OP and token.string in _OPEN:
            stack.append(at + 1)
        elif token.string == "," and "," in words and stack and line[at + 1 :].lstrip().startswith("("):
            around = line[stack[-2] - 1] if len(stack) > 1 else "[" if in_list else ""
            is_last = around == "[" and line[stack[-1] - 2 : stack[-1]].lstrip() in ("(", "[(")
            found.append(_Break(len(stack), at + 1, stack[-1], is_last))
        elif token.type == tokenize.OP and token.string in _CLOSE:
            stack = stack[:-1]
        elif token.string == "=" and stack:
            named.add(stack[-1])
        elif token.string in words and stack:
            found.append(_Break(len(stack), at + (token.string == ","), stack[-1]))
    return [each for each in found if each.column not in named and line[each.at :].strip()]


def _openings(line: str) -> list[int]:
    """Behind which brackets there is something, the outermost first."""
    margin = len(line) - len(line.lstrip())
    depth, found = 0, []
    for token in _tokens(line):
        if token.type == tokenize.OP:
            depth += (token.string in _OPEN) - (token.string in _CLOSE)
            if token.string in _OPEN:
                found.append((depth, token.end[1] + margin))
    return [at for _, at in sorted(found) if line[at : at + 1] not in _CLOSE]


def _tokens(line: str) -> list[tokenize.TokenInfo]:
    tokens = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"{line.lstrip()}\n").readline):
            tokens.append(token)
    except (tokenize.TokenError, IndentationError):
        pass  # brackets that lines below close
    return tokens


def _in_brackets(line: str, width: int) -> list[str] | None:
    """if A and B: with brackets around the condition, and B below A"""
    found = _CONDITION.fullmatch(line)
    wrapped = found and f"{found[1]}{found[2]}({found[3]}){found[4]}"
    if not found or not wrapped or not any(each.depth == 1 for each in _breaks(wrapped, ("and", "or"))):
        return None
    whole = f"{found[1]}    {found[3]})"
    if found[2].endswith("= ") and len(whole) <= width:
        return [f"{found[1]}{found[2]}(", whole]
    lines = _in_two(wrapped, width, "and", "or")
    if lines and found[2] == "if ":  # apart from the block below
        lines[1] = f"    {lines[1]}"
    return lines if lines and len(lines[1]) <= width else None
