"""Set and read the environment variables of NPUs.

before:           os.environ["CUDA_VISIBLE_DEVICES"] = gpus
after (npu):      os.environ["ASCEND_RT_VISIBLE_DEVICES"] = gpus
after (portable): os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["ASCEND_RT_VISIBLE_DEVICES"] = gpus
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.rule import Rule
from npukit.migrate.target import Target
from npukit.report import Edit, Finding
from npukit.source import PythonFile

VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "ASCEND_RT_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING": "ASCEND_LAUNCH_BLOCKING",
    "PYTORCH_CUDA_ALLOC_CONF": "PYTORCH_NPU_ALLOC_CONF",
    "NCCL_SOCKET_IFNAME": "HCCL_SOCKET_IFNAME",
}
rule = Rule("NPK130", "environment-variables", words=tuple(VARIABLES), fixes=True)

_CALLS = ("os.environ.get", "os.getenv", "os.environ.setdefault", "os.environ.pop", "os.putenv", "os.unsetenv")


@rule.on(ast.Constant)
def check(node: ast.Constant, file: PythonFile, target: Target) -> Iterator[Finding]:
    if not isinstance(node.value, str) or node.value not in VARIABLES or writing.serves_npu_already(node, file):
        return
    access = _access(node, file)
    new = VARIABLES[node.value]
    if access is None or (target.portable and new in file.text):
        return
    yield rule.finding(
        (file, node),
        f"{node.value} has no effect on NPUs",
        f"torch_npu and CANN read {new}.",
        f"Use {new}{' too' if target.portable else ''}.",
        _portable(node, access, new, file) if target.portable else (_renamed(node, new, file),),
    )


def _access(node: ast.Constant, file: PythonFile) -> ast.Call | ast.Subscript | None:
    """The call or subscript of os.environ that the name is given to."""
    parent = file.parent(node)
    if isinstance(parent, ast.Subscript) and file.resolve(parent.value) == "os.environ":
        return parent
    if isinstance(parent, ast.Call) and parent.args and parent.args[0] is node and file.resolve(parent.func) in _CALLS:
        return parent
    return None


def _renamed(node: ast.Constant, new: str, file: PythonFile) -> Edit:
    start, end = file.span(node)
    return Edit(start + 1, end - 1, new)


def _portable(node: ast.Constant, access: ast.Call | ast.Subscript, new: str, file: PythonFile) -> tuple[Edit, ...]:
    start, end = file.span(access)
    at = file.span(node)[0] + 1 - start
    source = file.text[start:end]
    twin = source[:at] + new + source[at + len(str(node.value)) :]
    if isinstance(access, ast.Subscript) and isinstance(access.ctx, ast.Store):
        return (file.insert(end, f" = {twin}"),) if isinstance(file.parent(access), ast.Assign) else ()
    if isinstance(access, ast.Subscript) and isinstance(access.ctx, ast.Load):
        return (file.insert(start, f'({file.source(access.value)}.get("{new}") or '), file.insert(end, ")"))
    if isinstance(access, ast.Call) and file.resolve(access.func) in ("os.environ.get", "os.getenv"):
        name = f"{file.source(access.func)}({file.source(node).replace(str(node.value), new)}"
        return (file.insert(start, f"{name}, "), file.insert(end, ")"))
    statement = file.parent(access)
    if isinstance(statement, ast.Expr) and file.alone_on_lines(statement):
        indent = file.text[file.line_start(statement) : file.span(statement)[0]]
        return (file.insert(end, f"{file.newline}{indent}{twin}"),)
    return ()
