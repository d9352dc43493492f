"""Set and read the NPU's environment variables in Python.

before:           os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
after (npu):      os.environ["ASCEND_RT_VISIBLE_DEVICES"] = str(gpu)
after (portable): os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["ASCEND_RT_VISIBLE_DEVICES"] = str(gpu)

The portable style sets both variables, and reads the NPU's first. A dictionary that becomes an environment is reported
there. Settings of CUDA's allocator that torch_npu refuses, such as backend:cudaMallocAsync, stay with CUDA.
"""

from __future__ import annotations

import ast

from npukit.facts.variables import is_refused, renamed
from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.styles import style_of

_VARIABLES = renamed()
rule = Rule(
    "NPK130",
    "environment-variables",
    words=tuple(_VARIABLES),
    fixes=True,
    why="torch_npu and CANN read variables of their own.",
    remedy="Set ASCEND_RT_VISIBLE_DEVICES, PYTORCH_NPU_ALLOC_CONF and the other variables that NPUs read.",
    effort=Effort(15, 5),
)

_CALLS = ("os.environ.get", "os.getenv", "os.environ.setdefault", "os.environ.pop", "os.putenv", "os.unsetenv")


@rule.on(ast.Constant)
def check(node: ast.Constant, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(node.value, str) or node.value not in _VARIABLES or is_kept(node, file, goal):
        return
    access = _access(node, file)
    around = file.function(node)
    new = _VARIABLES[node.value]
    if access is None:
        return
    if goal.portable and new in file.text:
        return
    if "ALLOC_CONF" in new and is_refused(file.text if around is file.tree else file.source(around)):
        yield rule.finding(
            (file, node),
            f"{node.value} has a setting that torch_npu refuses",
            why="It belongs to CUDA's allocator.",
            remedy=f"No change is needed: it stays with CUDA. Set {new} if other settings are wanted.",
            severity=Severity.note,
        )
        return
    yield rule.finding(
        (file, node),
        f"{node.value} has no effect on NPUs",
        why=f"torch_npu and CANN read {new}.",
        remedy=f"Set {new}.",
        edits=style_of(goal).choose(_portable(node, access, new, file), [_renamed(node, new, file)], file),
    )


_Access = ast.Call | ast.Subscript | ast.Compare | ast.Dict


def _access(node: ast.Constant, file: PythonFile) -> _Access | None:
    """Return the call, subscript or comparison that reads or sets the variable in the environment."""
    parent = file.parent(node)
    if isinstance(parent, ast.Subscript) and _is_environment(parent.value, file):
        return parent
    if isinstance(parent, ast.Compare) and parent.left is node and _is_environment(parent.comparators[0], file):
        return parent
    if isinstance(parent, ast.Dict) and node in parent.keys and _becomes_environment(parent, file):
        return parent
    if isinstance(parent, ast.Call) and parent.args and parent.args[0] is node and file.resolve(parent.func) in _CALLS:
        return parent
    return None


def _is_environment(node: ast.AST | None, file: PythonFile) -> bool:
    """Return whether an expression is os.environ, a copy of it, or a variable that holds one."""
    if isinstance(node, ast.Call):
        name = file.resolve(node.func)
        return name in ("os.environ.copy", "os.environ.keys") or (
            name == "dict" and any(_is_environment(argument, file) for argument in node.args)
        )
    if isinstance(node, ast.Dict):
        return any(_is_environment(value, file) for key, value in zip(node.keys, node.values, strict=True) if not key)
    if file.resolve(node) == "os.environ":
        return True
    bindings = file.bindings(node) if isinstance(node, ast.Name) else []
    return any(
        isinstance(binding.value, (ast.Call, ast.Dict)) and _is_environment(binding.value, file) for binding in bindings
    )


def _becomes_environment(table: ast.Dict, file: PythonFile) -> bool:
    parent = file.parent(table)
    if isinstance(parent, ast.Call) and table in parent.args:
        return file.resolve(parent.func) == "os.environ.update"
    return _is_environment(table, file) or (isinstance(parent, ast.keyword) and parent.arg == "env")


def _renamed(node: ast.Constant, new: str, file: PythonFile) -> Edit:
    start, end = file.span(node)
    return Edit(start + 1, end - 1, new)


def _portable(node: ast.Constant, access: _Access, new: str, file: PythonFile) -> tuple[Edit, ...]:
    start, end = file.span(access)
    name, parent = file.source(node).replace(str(node.value), new), file.parent(access)
    if isinstance(access, ast.Compare):
        negated = isinstance(access.ops[0], ast.NotIn)
        joined = f" {'and' if negated else 'or'} {name}{file.text[file.span(node)[1] : end]}"
        is_whole = isinstance(parent, (ast.If, ast.While, ast.Assign, ast.Return))
        return (file.insert(end, joined),) if is_whole else (file.insert(start, "("), file.insert(end, f"{joined})"))
    if isinstance(access, ast.Subscript) and isinstance(access.ctx, ast.Store):
        at = file.span(node)[0] + 1
        twin = file.text[start:at] + new + file.text[at + len(str(node.value)) : end]
        return _set_too(parent, twin, end, file)
    if isinstance(access, ast.Subscript) and isinstance(access.ctx, ast.Load):
        either = f"{file.source(access.value)}.get({name}) or "
        is_whole = isinstance(parent, (ast.Assign, ast.Return, ast.keyword))
        return (file.insert(start, either),) if is_whole else (file.insert(start, f"({either}"), file.insert(end, ")"))
    if isinstance(access, ast.Call) and file.resolve(access.func) in ("os.environ.get", "os.getenv"):
        return (file.insert(start, f"{file.source(access.func)}({name}, "), file.insert(end, ")"))
    return ()


def _set_too(statement: ast.AST | None, twin: str, end: int, file: PythonFile) -> tuple[Edit, ...]:
    """Return the edits that set the other variable too, in a statement of its own if the value is a name."""
    if not isinstance(statement, ast.Assign):
        return ()
    if isinstance(statement.value, (ast.Name, ast.Attribute)) and file.alone_on_lines(statement):
        return (
            file.insert_line(
                file.line_end(statement), f"{file.indent(statement)}{twin} = {file.source(statement.value)}"
            ),
        )
    return (file.insert(end, f" = {twin}"),)
