"""A branch that chooses the device, and beside it does something for CUDA alone, which gets a condition of its own.

before: if torch.cuda.is_available():
            device = torch.device("cuda", rank)
            symm_mem.set_backend("NCCL")
        else:
            device = torch.device("cpu")
after:  if torch.accelerator.is_available():
            device = torch.device(rank)
            if torch.cuda.is_available():
                symm_mem.set_backend("NCCL")
        else: ...
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from npukit.migrate.purposes import is_for_cuda
from npukit.source import Edit, PythonFile


def beside_the_device(condition: ast.expr, file: PythonFile) -> list[ast.stmt]:
    """The calls for CUDA alone in a branch that otherwise chooses the device, as the other branch does."""
    choice = file.parent(condition)
    if not isinstance(choice, ast.If) or choice.test is not condition or not isinstance(condition, ast.Call):
        return []
    chosen = {target for target, value in _assigned(choice.body, file) if "cuda" in value}
    if not chosen & {target for target, value in _assigned(choice.orelse, file) if "cpu" in value}:
        return []
    alone: list[ast.stmt] = [each for each in choice.body if isinstance(each, ast.Expr) and is_for_cuda([each], file)]
    rest = [each for each in choice.body if each not in alone]
    on_lines = all(each.lineno == each.end_lineno and file.alone_on_lines(each) for each in alone)
    return alone if on_lines and not is_for_cuda(rest, file) else []


def _assigned(body: list[ast.stmt], file: PythonFile) -> Iterator[tuple[str, str]]:
    for statement in body:
        if isinstance(statement, ast.Assign) and "device" in file.source(statement):
            yield file.source(statement.targets[0]), file.source(statement.value)


def under_a_condition(statements: Sequence[ast.stmt], condition: ast.expr, file: PythonFile) -> Iterator[Edit]:
    """The edits that put each statement under a copy of the condition."""
    for statement in statements:
        start = file.span(statement)[0]
        indent = file.text[file.line_start(statement) : start]
        step = "\t" if "\t" in indent else "    "
        yield file.insert(start, f"if {file.source(condition)}:{file.newline}{indent}{step}")
