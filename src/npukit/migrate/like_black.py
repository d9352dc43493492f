"""A statement laid out as black does it, and ruff's formatter: on one line, else broken at its last brackets.

before:  x = f(a, b).to(get_accelerator().get_current_device())
after:   x = f(a, b).to(
             get_accelerator().get_current_device()
         )

What is known of the rules: a line that is too long is broken around what its last brackets hold, or earlier ones where
what stands behind them fits; optional brackets around a value are used where nothing else helps; what stands in
brackets and is still too long is broken at its weakest operators, which at commas leaves one behind the last.
"""

from __future__ import annotations

import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

from npukit.migrate.black_leaves import COMMA, DOT, Leaf, closes, delimiters, leaves_of, opens

_NOT_OURS = ("from ", "import ", "class ", "async ", "case ", "match ", "lambda ", "type ", "global ")
_HEADS = ("if", "elif", "else", "while", "for", "with", "def", "try", "except", "finally")
_STEP = 4


class _CannotSplit(Exception):
    pass


@dataclass(frozen=True)
class Style:
    """How wide lines are, whether a comma behind the last argument keeps one a line, whether ruff formats, and how much
    brackets must hold to be worth a line (black breaks at any)."""

    width: int
    magic_comma: bool = True
    ruff: bool = False
    worth_a_line: int = 0


@dataclass
class _Line:
    leaves: list[Leaf]
    indent: int
    inside: bool = False
    explodes: bool = False
    part: str = "whole"
    delimiters: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.delimiters = dict(delimiters(self.leaves)) if self.inside or self.part == "whole" else {}

    def text(self) -> str:
        return " " * self.indent + "".join(leaf.space + leaf.text for leaf in self.leaves).lstrip()


def laid_out(text: str, style: Style) -> str | None:
    """The statement as black would write it; None where that is not known, as with comments in it.

    >>> laid_out("x = f(\\n    a\\n)", Style(88))
    'x = f(a)'
    """
    if "#" in text or '"""' in text or "'''" in text or "\\\n" in text or "\t" in text or not text.isascii():
        return None
    indent = len(text) - len(text.lstrip(" "))
    stripped = text.strip()
    if stripped.startswith(_NOT_OURS) or any(word in text for word in (":=", "yield", ";", "async ")):
        return None
    try:
        leaves = leaves_of(stripped, style.magic_comma, choices_in_brackets=not style.ruff)
    except (tokenize.TokenError, SyntaxError, IndexError):
        return None
    if leaves[0].text in _HEADS and leaves[-1].text != ":":
        return None
    lines = _transformed(_Line(leaves, indent), style)
    return "\n".join(line.text() for line in lines)


def _transformed(line: _Line, style: Style, force: bool = False) -> list[_Line]:
    text = line.text()
    if not line.explodes and not _magic(line, style) and len(text) <= style.width:
        return [line]
    ways = [_at_delimiters, _at_brackets] if line.inside else [_at_brackets]
    if line.leaves[0].text == "def" and line.part == "whole":
        ways = [_of_definition]
    for way in ways:
        try:
            return _run(way, line, style, force)
        except _CannotSplit:
            continue
    return [line]


def _run(way: object, line: _Line, style: Style, force: bool) -> list[_Line]:
    parts = way(line, style, force)  # type: ignore[operator]
    if any(part.text() == line.text() for part in parts):
        raise _CannotSplit
    lines = [each for part in parts for each in _transformed(part, style, force)]
    unseen = any(leaf.optional and not leaf.text for leaf in line.leaves)
    seen = any(leaf.optional and leaf.text for each in lines for leaf in each.leaves)
    if force or way is not _at_brackets or not unseen or seen or len(lines[0].text()) <= style.width:
        return lines
    other = _run(way, line, style, True)
    return other if all(len(each.text()) <= style.width for each in other) else lines


def _magic(line: _Line, style: Style) -> bool:
    """Whether brackets in the line hold a comma behind their last value, and so are never joined."""
    if line.part == "tail" or not style.magic_comma:
        return False
    return any(
        b.kind == "close" and a.text == "," and not b.holds_one and b.opens in line.leaves
        for a, b in pairwise(line.leaves)
    )


def _at_delimiters(line: _Line, style: Style, force: bool) -> list[_Line]:
    final = len(line.leaves) - 1
    weak = [priority for index, priority in line.delimiters.items() if index != final]
    if not weak or (max(weak) == DOT and weak.count(DOT) == 1):
        raise _CannotSplit
    priority = max(weak)
    lines, begin = [], 0
    for index in range(len(line.leaves)):
        if line.delimiters.get(index) == priority or index == final:
            leaves = line.leaves[begin : index + 1]
            begin = index + 1
            if index == final and priority == COMMA and leaves[-1].text != ",":
                leaves = [*leaves, Leaf(",", priority=COMMA)]
            lines.append(_Line(leaves, line.indent, inside=True))
    return lines


@dataclass(frozen=True)
class _Split:
    head: _Line
    body: _Line
    tail: _Line
    opening: Leaf
    closing: Leaf


def _at_brackets(line: _Line, style: Style, force: bool) -> list[_Line]:
    for omitted in _omitted(line, style):
        lines = _without_optional(_split(line, omitted, style), line, style, force, omitted)
        if len(lines[0].text()) <= style.width:
            return lines
    return _without_optional(_split(line, frozenset(), style), line, style, force, frozenset())


def _omitted(line: _Line, style: Style) -> Iterator[frozenset[int]]:
    """Brackets at the end that stay closed, so that the line is broken at those before them; more of them each time."""
    omitted: set[int] = set()
    if not _magic(line, style):
        yield frozenset()
    length = line.indent
    opening = closing = None
    inner: set[int] = set()
    for index in range(len(line.leaves) - 1, -1, -1):
        leaf = line.leaves[index]
        length += len(leaf.space) + len(leaf.text)
        if length > style.width:
            break
        previous = line.leaves[index - 1] if index else None
        is_magic = previous is not None and previous.text == "," and leaf.opens is not None and not leaf.holds_one
        if opening is not None:
            if leaf is opening:
                opening = None
            elif closes(leaf):
                if is_magic:
                    break
                inner.add(id(leaf))
        elif closes(leaf):
            if previous is not None and opens(previous):
                inner.add(id(leaf))
                continue
            if closing is not None:
                omitted |= {id(closing), *inner}
                inner.clear()
                yield frozenset(omitted)
            if is_magic:
                break
            if leaf.text:
                opening, closing = leaf.opens, leaf


def _split(line: _Line, omitted: frozenset[int], style: Style) -> _Split:
    """The line in front of its last brackets, what they hold, and what is behind."""
    leaves, small = line.leaves, None
    for end in range(len(leaves) - 1, -1, -1):
        closing = leaves[end]
        if not closes(closing) or id(closing) in omitted:
            continue
        begin = next((index for index in range(end) if leaves[index] is closing.opens), None)
        if begin is None:
            break
        if begin + 1 == end:  # nothing inside: it belongs to what is behind
            continue
        inside = _Line(leaves[begin + 1 : end], line.indent + _STEP, inside=True)
        inside.explodes = _explodes(inside, leaves[begin], style)
        head, tail = (
            _Line(part, line.indent, part=name)
            for name, part in (("head", leaves[: begin + 1]), ("tail", leaves[end:]))
        )
        found = _Split(head, inside, tail, leaves[begin], closing)
        if len(inside.text()) - inside.indent >= style.worth_a_line:
            return found
        small = small or found
    if small is None:
        raise _CannotSplit
    return small


def _explodes(body: _Line, opening: Leaf, style: Style) -> bool:
    final = len(body.leaves) - 1
    has_comma = body.leaves[-1].text == ","
    weak = max((p for index, p in body.delimiters.items() if not (has_comma and index == final)), default=0)
    return weak == COMMA and ((style.magic_comma and has_comma) or opening.of_value)


def _without_optional(split: _Split, line: _Line, style: Style, force: bool, omitted: frozenset[int]) -> list[_Line]:
    """The parts; where the brackets are optional, those of a break without them if that reads better."""
    if not force and split.opening.optional and not split.opening.text and _may_omit(split, style, line):
        omitted = omitted | {id(split.closing)}
        try:
            other = _split(line, omitted, style)
            if not _after_equal(split, style) or _prefers(other, split, style):
                return _without_optional(other, line, style, force, omitted)
        except _CannotSplit:
            chained = sum(leaf.text == "=" for leaf in line.leaves) > 1
            if not chained and not _can_be_split(split.body) and len(split.body.text()) > style.width:
                raise
    return _shown(split)


def _shown(split: _Split) -> list[_Line]:
    """The parts, with the brackets that they were broken at written."""
    if not split.opening.text:
        opening = replace(split.opening, text="(")
        closing = replace(split.closing, text=")", opens=opening)
        split.head.leaves[-1] = opening
        split.tail.leaves[0] = closing
    return [split.head, split.body, split.tail]


def _after_equal(split: _Split, style: Style) -> bool:
    """Whether a break behind `=` serves, as brackets on the left could be broken else."""
    head = split.head.leaves
    return (
        len(head) > 1
        and head[-2].text == "="
        and any(leaf.kind in ("open", "close") for leaf in head[:-1])
        and len(split.head.text()) <= style.width - 1
        and not _magic(split.head, style)
    )


def _prefers(other: _Split, split: _Split, style: Style) -> bool:
    equals, others = (sum(leaf.text == "=" for leaf in each.head.leaves) for each in (split, other))
    if equals > 1 and equals > others:
        return False
    for leaf in reversed(other.head.leaves):
        if leaf.text == "=":
            break
        if closes(leaf):
            return True
    return others > 0 and len(other.head.text()) <= style.width


def _can_be_split(body: _Line) -> bool:
    return len(body.leaves) > 1


def _may_omit(split: _Split, style: Style, line: _Line) -> bool:
    """Whether a value is laid out well without brackets around it."""
    body = split.body
    if style.ruff and line.leaves[0].text == "assert" and split.closing is line.leaves[-1]:
        return len(split.head.text()) >= style.width
    if not body.delimiters:
        return True
    weak = max(body.delimiters.values())
    if list(body.delimiters.values()).count(weak) > 1:
        return False
    if weak == DOT:
        return True
    first, last = body.leaves[0], body.leaves[-1]
    if opens(first) and not closes(body.leaves[1]) and _fits_behind(body, first, style):
        return True
    is_index = last.text == "]" and last.opens is not None and not last.opens.of_value
    if not closes(last) or is_index or opens(body.leaves[-2]):
        return False
    return _fits_before(body, last, style)


def _fits_behind(body: _Line, first: Leaf, style: Style) -> bool:
    rest, length = False, body.indent
    for leaf in body.leaves:
        rest = rest or (closes(leaf) and leaf.opens is first)
        if rest:
            length += len(leaf.space) + len(leaf.text)
            if length > style.width:
                return False
            rest = not opens(leaf)
    return True


def _fits_before(body: _Line, last: Leaf, style: Style) -> bool:
    length, others = body.indent, False
    for leaf in body.leaves:
        length += len(leaf.space) + len(leaf.text)
        if leaf is last.opens:
            if others or length <= style.width:
                return True
        elif opens(leaf):
            others = True
    return False


def _of_definition(line: _Line, style: Style, force: bool) -> list[_Line]:
    """def f(...) -> ...: at its first brackets."""
    begin = next(index for index, leaf in enumerate(line.leaves) if opens(leaf))
    end = next(index for index, leaf in enumerate(line.leaves) if leaf.opens is line.leaves[begin])
    body = line.leaves[begin + 1 : end]
    if not body:
        raise _CannotSplit
    inside = _Line(body, line.indent + _STEP, inside=True)
    commas = list(inside.delimiters.values()).count(COMMA)
    if not commas:
        inside = _Line([*body, Leaf(",", priority=COMMA)], line.indent + _STEP, inside=True)
    inside.explodes = style.magic_comma and body[-1].text == "," and commas > 1
    return [
        _Line(line.leaves[: begin + 1], line.indent, part="head"),
        inside,
        _Line(line.leaves[end:], line.indent, part="tail"),
    ]
