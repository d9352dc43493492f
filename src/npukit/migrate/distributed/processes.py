"""Code for all processes and for one of them: joining the group, choosing the card, saving."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.constant_position import below_torch
from npukit.migrate.distributed.parts import Unseen, line_after, line_before
from npukit.migrate.goal import Goal
from npukit.migrate.styles import style_of
from npukit.migrate.styles.helpers import is_own_constant
from npukit.migrate.styles.style import Text, torch_name
from npukit.migrate.training import LOOPS, method
from npukit.source import Edit, PythonFile

_KIND = re.compile(r"""f(["'])\{(?:\w*DEVICE(?:_TYPE)?|.*\.type)\}:0\1""")  # f"{DEVICE_TYPE}:0"
_IMPORTS = (ast.Import, ast.ImportFrom)


def saved_once(call: ast.Call, file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that put a statement, or the `with open(...)` around it, under a condition for one process."""
    statement = file.statement(call)
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, ast.With):
            statement = ancestor
        elif isinstance(ancestor, (ast.FunctionDef, *LOOPS, ast.If)):
            break
    start, end = file.span(statement)
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if not file.alone_on_lines(statement) or any(string.lineno != string.end_lineno for string in inner):
        raise Unseen(statement, "statement", "this statement cannot be indented", "Run it only where get_rank() is 0.")
    indent = file.indent(statement)
    yield line_before(statement, f"if {torch_name(file).text}.distributed.get_rank() == 0:", file)
    line = file.line_start(statement)
    while line < end:
        yield file.insert(line if line > start else start, "\t" if "\t" in indent else "    ")
        line = file.text.find("\n", line) + 1 or end


def process_group(file: PythonFile, goal: Goal) -> Iterator[Edit]:
    """Yield the edits that join the process group at the start and leave it at the end."""
    set_device = style_of(goal).function_name("set_device", file.tree, file, goal)
    torch = torch_name(file).text
    backend = style_of(goal).backend(file.tree, file, goal) or Text('"hccl"')
    yield from dict.fromkeys([*set_device.edits, *backend.edits])
    lines = (
        f'{set_device.text}(int(os.environ["LOCAL_RANK"]))',
        f"{torch}.distributed.init_process_group({backend.text})",
    )
    leave = f"{torch}.distributed.destroy_process_group()"
    if not any(isinstance(node, ast.Import) and any(a.name == "os" and not a.asname for a in node.names)
               for node in file.tree.body):  # fmt: skip
        first = next(node for node in file.tree.body if isinstance(node, _IMPORTS) and not _is_future(node))
        yield line_before(first, "import os", file)
    guard = _main_guard(file)
    if guard is not None:
        yield from (line_before(guard.body[0], line, file) for line in lines)
        yield line_after(guard.body[-1], leave, file)
    else:
        yield file.insert_line(_head_end(file), file.newline + file.newline.join(lines))
        yield file.insert_line(len(file.text), leave)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _main_guard(file: PythonFile) -> ast.If | None:
    guards = (node for node in file.tree.body if isinstance(node, ast.If) and "__name__" in file.source(node.test))
    return next(guards, None)


def _head_end(file: PythonFile) -> int:
    """Return the offset below the imports and below the constant that names the device."""
    end = below_torch(file)
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and is_own_constant(node, file):
            end = max(end, file.line_end(node))
    return end


def without_index(file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that turn card 0 into the card of the process, which is the current one."""
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value in ("npu:0", "cuda:0") and not _in_string(node, file):
            yield file.replace(node, repr(str(node.value)[:-2]).replace("'", file.source(node)[0]))
        elif isinstance(node, ast.JoinedStr) and len(node.values) == 2 and _KIND.fullmatch(file.source(node)):
            yield file.replace(node, file.source(node)[3:-4])
        elif isinstance(node, ast.IfExp) and getattr(node.body, "value", "") == 0 and _is_device(node, file):
            yield file.replace(node.body, f"{torch_name(file).text}.accelerator.current_accelerator()")
        elif isinstance(node, ast.Call) and method(node) in ("cuda", "npu", "set_device", "to") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and type(first.value) is int:
                raise Unseen(node, "card", f"card {first.value} is hard-coded", "Select the card by LOCAL_RANK.")


def _is_device(choice: ast.IfExp, file: PythonFile) -> bool:
    """Return whether a choice is a device: torch.device(0 if torch.accelerator.is_available() else "cpu")"""
    call = file.parent(choice)
    return isinstance(call, ast.Call) and file.resolve(call.func) == "torch.device"


def _in_string(node: ast.AST, file: PythonFile) -> bool:
    return isinstance(file.parent(node), (ast.JoinedStr, ast.FormattedValue))
