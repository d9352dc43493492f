"""Messages about CUDA: a value printed under CUDA's name stays, and the reason of a skipped test follows its condition.

before: @pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA not available")
after:  @pytest.mark.skipif(not torch.accelerator.is_available(), reason="accelerator not available")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.styles import style_of
from npukit.source import Edit, PythonFile

_SKIPS = ("skipif", "skipIf", "skipUnless", "skip", "skipTest")
# text before, CUDA's name, and text after, in "no CUDA"
_MISSED = (
    re.compile(r"(^[\"'])(CUDA)( is (?:not available|unavailable|required))"),
    re.compile(r"(^[\"'])(CUDA)( (?:not available|unavailable|required|not found))"),
    re.compile(
        r"([Rr]equires?|[Nn]eeds?|[Nn]eeding|[Ww]ithout)( (?:a )?CUDA(?: device| GPU)?)(?=$|[\"'.,;:)]| for | to )"
    ),
)


def is_printed(node: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is only printed: print("CUDA available:", torch.cuda.is_available())"""
    parent = file.parent(node)
    text = file.parent(parent) if isinstance(parent, ast.FormattedValue) else parent
    if isinstance(text, ast.Call) and node in text.args:
        parts: list[ast.expr] = text.args[: text.args.index(node)]
    else:
        parts = text.values if isinstance(text, ast.JoinedStr) else []
    texts = [str(part.value).lower() for part in parts if isinstance(part, ast.Constant)]
    return any("cuda" in label and re.search(r"[\s:]", label) for label in texts)  # a label, not a key like "use_cuda"


def reworded_reason(condition: ast.expr, file: PythonFile, goal: Goal) -> Iterator[Edit]:
    """Yield the edits to the reason of a skipped test whose condition is migrated."""
    for text in _reasons(condition, file):
        source, start = file.source(text), file.span(text)[0]
        for number, pattern in enumerate(_MISSED):
            if match := pattern.search(source):
                yield Edit(start + match.start(2), start + match.end(2), _name(number, style_of(goal).accelerator))
                break


def _name(number: int, one: str) -> str:
    return (f"An {one}" if number == 0 else one) if number < 2 else f" an {one}"


def _reasons(condition: ast.expr, file: PythonFile) -> list[ast.Constant]:
    """Return the texts of @pytest.mark.skipif(condition, reason="...") and of `if condition: pytest.skip("...")`."""
    around = file.parent(condition)
    while isinstance(around, (ast.UnaryOp, ast.Compare)):
        around = file.parent(around)
    call: ast.AST | None = around
    if isinstance(around, ast.If) and len(around.body) == 1 and isinstance(around.body[0], ast.Expr):
        call = around.body[0].value
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in _SKIPS:
        return []
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "reason")]
    return [argument for argument in given if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
