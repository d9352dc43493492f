"""The tokens of a statement, with the brackets that black may write around its values, and where lines may break."""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_COMPREHENSION, COMMA, _TERNARY, _LOGIC, _STRING, _COMPARISON, DOT = 20, 18, 16, 14, 12, 10, 1
_MATHS = {"|": 9, "^": 8, "&": 7, "<<": 6, ">>": 6, "+": 5, "-": 5, "*": 4, "/": 4, "//": 4, "%": 4, "@": 4, "**": 2}
_COMPARED = frozenset(("<", ">", "==", "!=", "<=", ">=", "is", "in"))
_ASSIGNS = frozenset(("=", "+=", "-=", "*=", "/=", "//=", "%=", "@=", "&=", "|=", "^=", "<<=", ">>=", "**="))


@dataclass(eq=False)
class Leaf:
    """A token, and the space before it; brackets without a text are optional ones that are not written."""

    text: str
    space: str = ""
    kind: str = "op"
    opens: Leaf | None = None  # of a closing bracket
    of_value: bool = False  # an opening bracket of a list, tuple, dictionary or of the whole value, not of a call
    optional: bool = False
    priority: int = 0  # of a break in front of this token; of a comma, behind it
    within: Leaf | None = None  # of a comma: the brackets that it is in
    holds_one: bool = False  # of a closing bracket: one value and a comma, as tuples of one have


def opens(leaf: Leaf) -> bool:
    return leaf.kind == "open"


def closes(leaf: Leaf) -> bool:
    return leaf.kind == "close"


def _ends_operand(leaf: Leaf) -> bool:
    return closes(leaf) or leaf.kind in ("name", "string", "number")


def leaves_of(text: str, magic_comma: bool, choices_in_brackets: bool) -> list[Leaf]:
    """The tokens of a statement on one line, with the optional brackets that black may write."""
    leaves = _tokens(text)
    one_line = "".join(leaf.space + leaf.text for leaf in leaves)
    choices = _choices(one_line) if choices_in_brackets else []
    _with_priorities(leaves)
    if not magic_comma:
        leaves = [leaf for leaf, after in zip(leaves, [*leaves[1:], None], strict=True) if not _is_extra(leaf, after)]
    return _with_optional_brackets(leaves, choices)


def _is_extra(leaf: Leaf, after: Leaf | None) -> bool:
    return leaf.text == "," and after is not None and closes(after) and not after.holds_one


def _tokens(text: str) -> list[Leaf]:
    leaves: list[Leaf] = []
    stack: list[Leaf] = []
    lines = text.split("\n")
    end = begins = (1, 0)
    in_string = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name, start, string = tokenize.tok_name[token.type], token.start, token.string
        if name in ("NEWLINE", "NL", "ENDMARKER", "INDENT", "DEDENT"):
            continue
        if name == "FSTRING_START":
            begins = begins if in_string else start
            in_string += 1
        elif name == "FSTRING_END":
            in_string -= 1
            start, string = begins, lines[begins[0] - 1][begins[1] : token.end[1]]
        if in_string:
            continue
        space = _space(leaves[-1], string, start[0] == end[0], start[1] - end[1]) if leaves else ""
        leaf = Leaf(string, space, _kind(name, string))
        _paired(leaf, leaves, stack)
        leaves.append(leaf)
        end = token.end
    return leaves


def _paired(leaf: Leaf, leaves: list[Leaf], stack: list[Leaf]) -> None:
    """What a bracket opens or closes, and the brackets that a comma is in."""
    if opens(leaf):
        leaf.of_value = not leaves or not _ends_operand(leaves[-1])
        stack.append(leaf)
    elif closes(leaf):
        opening = leaf.opens = stack.pop()
        commas = [each for each in leaves if each.within is opening]
        is_single = len(commas) == 1 and leaves[-1] is commas[0]
        leaf.holds_one = is_single and opening.text != "{" and (leaf.text == ")") == opening.of_value
    elif leaf.text == "," and stack:
        leaf.within = stack[-1]


def _kind(name: str, string: str) -> str:
    if string in _OPEN:
        return "open"
    if string in _CLOSE:
        return "close"
    if name in ("STRING", "FSTRING_END"):
        return "string"
    if name == "NAME":
        return "word" if keyword.iskeyword(string) and string not in ("None", "True", "False") else "name"
    return "number" if name == "NUMBER" else "op"


def _space(previous: Leaf, string: str, same_line: bool, width: int) -> str:
    if same_line:
        return " " if width else ""
    return "" if opens(previous) or string in _CLOSE or string == "." else " "


def _choices(text: str) -> list[tuple[int, int]]:
    """Where conditional expressions begin and end in a line."""
    code, shift = text, 0
    for prefix, instead in (("el", ""), ("@", ""), ("return", "yield ")):
        if text.startswith(prefix):
            code, shift = instead + text.removeprefix(prefix), len(prefix) - len(instead)
    tree = ast.parse(f"{code} pass" if code.endswith(":") else code)
    return [
        (node.col_offset + shift, (node.end_col_offset or 0) + shift)
        for node in ast.walk(tree)
        if isinstance(node, ast.IfExp)
    ]


def _with_priorities(leaves: list[Leaf]) -> None:
    loops: list[bool] = [False]  # whether a comprehension's `for` was seen between these brackets
    previous: Leaf | None = None
    for index, leaf in enumerate(leaves):
        after = leaves[index + 1] if index + 1 < len(leaves) else None
        operand = previous is not None and _ends_operand(previous)
        if opens(leaf):
            loops.append(False)
        elif closes(leaf):
            loops.pop()
        elif leaf.text == ",":
            leaf.priority = COMMA
        elif leaf.text == ".":
            leaf.priority = DOT if previous is not None and closes(previous) else 0
        elif leaf.kind == "string":
            leaf.priority = _STRING if previous is not None and previous.kind == "string" else 0
        elif leaf.text == "for" and previous is not None:
            loops[-1], leaf.priority = True, _COMPREHENSION
        elif leaf.text in ("if", "else") and previous is not None:
            leaf.priority = _COMPREHENSION if loops[-1] and leaf.text == "if" else _TERNARY
        elif leaf.text in ("and", "or"):
            leaf.priority = _LOGIC
        elif leaf.text == "not":
            leaf.priority = _COMPARISON if after is not None and after.text == "in" else 0
        elif leaf.text in _COMPARED:
            leaf.priority = 0 if previous is not None and previous.text == "not" else _COMPARISON
        elif leaf.text in _MATHS and operand:
            leaf.priority = _MATHS[leaf.text]
        previous = leaf


def _with_optional_brackets(leaves: list[Leaf], choices: list[tuple[int, int]]) -> list[Leaf]:
    """The leaves with brackets that are not written around values, conditions and conditional expressions."""
    column, starts, ends = 0, [], []
    for leaf in leaves:
        starts.append(column + len(leaf.space))
        column += len(leaf.space) + len(leaf.text)
        ends.append(column)
    spans = [
        (starts.index(start), ends.index(end), False)
        for start, end in choices
        if start in starts and end in ends and not (starts.index(start) and leaves[starts.index(start) - 1].text == "(")
    ]
    wide = list(_values(leaves))
    for first, last in wide:
        if (first, last, False) in spans:
            spans.remove((first, last, False))
        spans.append((first, last, True))
    before: dict[int, list[Leaf]] = {}
    behind: dict[int, list[Leaf]] = {}
    for first, last, of_value in sorted(spans, key=lambda span: (span[0], -span[1], not span[2])):
        if of_value and leaves[last].opens is leaves[first] and leaves[first].text == "(":
            if not _is_tuple(leaves, first, last):  # brackets that need not be there
                for leaf in (leaves[first], leaves[last]):
                    leaf.text, leaf.optional, leaf.of_value = "", True, True
            continue
        opening = Leaf("", leaves[first].space, "open", of_value=of_value, optional=True)
        leaves[first].space = ""
        before.setdefault(first, []).append(opening)
        behind.setdefault(last, []).insert(0, Leaf("", "", "close", opening, optional=True))
    found = []
    for index, leaf in enumerate(leaves):
        found += [*before.get(index, ()), leaf, *behind.get(index, ())]
    return found


def delimiters(leaves: list[Leaf]) -> Iterator[tuple[int, int]]:
    """The last leaf of each part that may stand on a line of its own, and how weak the break is."""
    depth = 0
    pending: list[int] = []  # for ... in and lambda ...: hold what is between them together
    for index, leaf in enumerate(leaves):
        if pending and pending[-1] == depth and leaf.text in ("in", ":"):
            depth -= 1
            pending.pop()
            continue
        depth -= closes(leaf)
        if depth == 0 and leaf.priority:
            if leaf.text == ",":
                yield index, leaf.priority
            elif index:
                yield index - 1, leaf.priority
        depth += opens(leaf)
        if leaf.text in ("for", "lambda") and leaf.kind == "word":
            depth += 1
            pending.append(depth)


def _is_tuple(leaves: list[Leaf], first: int, last: int) -> bool:
    inside = (priority for _, priority in delimiters(leaves[first + 1 : last]))
    return last == first + 1 or max(inside, default=0) >= COMMA


def _values(leaves: list[Leaf]) -> Iterator[tuple[int, int]]:
    """What may stand between brackets of its own: what is assigned, returned, asserted, asked or looped over."""
    ends_with_colon = leaves[-1].text == ":"
    last = len(leaves) - (2 if ends_with_colon else 1)
    first = leaves[0].text if leaves[0].kind == "word" else ""
    depth, marks = 0, []
    for index, leaf in enumerate(leaves):
        depth += opens(leaf) - closes(leaf)
        if depth == 0:
            is_assigned = not first and leaf.text in _ASSIGNS
            if is_assigned or (first == "assert" and leaf.text == ",") or (first == "for" and leaf.text == "in"):
                marks.append(index)
    if first == "def":
        return
    if first in ("return", "assert", "if", "elif", "while", "for", "del"):
        marks.insert(0, 0)
    marks.append(last + 1)
    for a, b in pairwise(marks):
        if b > a + 1:
            yield a + 1, b - 1
