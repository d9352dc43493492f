"""Double precision on the device (NPK709)."""

from __future__ import annotations

import ast
import re

from npukit.migrate.rule import Finding, Findings, Goal, PythonFile, Severity, described
from npukit.migrate.training import method

_rule = described("NPK709")
_TYPES = {"torch.float64", "torch.double", "torch.complex128", "torch.cdouble", "torch.DoubleTensor"}
_HOST = "It matters only if the tensor is moved to an NPU, which has no double-precision units."
_FACTORIES = {
    f"torch.{name}"
    for name in (
        *("arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "logspace", "ones", "rand"),
        *("randint", "randn", "randperm", "tensor", "zeros", "Tensor", "FloatTensor"),
    )
}
_CPU = re.compile(r"""\.cpu\(\)|\.numpy\(\)|["']cpu["']""")
_LAST_NAMES = {name.removeprefix("torch.") for name in _TYPES}


@_rule.on(ast.Attribute, says=_LAST_NAMES)
def check_name(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if file.resolve(name) not in _TYPES or _is_only_named(name, file) or _is_elsewhere(name, file):
        return
    call = file.parent(name)
    if isinstance(call, ast.keyword):
        call = file.parent(call)
    if not _on_cpu(name, file):
        yield _finding(name, isinstance(call, ast.Call) and _is_made_on_host(call, file), file)


@_rule.on_call(("double",))
def check_method(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "double" or call.args or call.keywords or "torch" not in file.text:
        return
    if not (file.resolve(call.func) or "").startswith(("torch.", "numpy.")) and not _on_cpu(call, file):
        yield _finding(call, _is_made_on_host(call, file), file)


def _finding(node: ast.AST, on_host: bool, file: PythonFile) -> Finding:
    if on_host:
        return _rule.finding(
            (file, node), "a tensor on the CPU has double precision", why=_HOST, severity=Severity.note
        )
    return _rule.finding((file, node), "double precision is used on the device")


def _is_only_named(name: ast.Attribute, file: PythonFile) -> bool:
    """Return whether a type is only named: x.dtype == torch.float64, pytest.param(torch.float64)"""
    parent = file.parent(name)
    if isinstance(parent, ast.Call) and file.resolve(parent.func) == "pytest.param":
        return True
    return isinstance(parent, (ast.Compare, ast.Dict, ast.Tuple, ast.List, ast.Set))


def _is_elsewhere(name: ast.Attribute, file: PythonFile) -> bool:
    """Return whether a type is used on other devices only: torch.float32 if DEVICE.type == "npu" else torch.float64"""
    choice = file.parent(name)
    asked = file.source(choice.test).replace("'", '"') if isinstance(choice, ast.IfExp) else ""
    return isinstance(choice, ast.IfExp) and choice.orelse is name and '"npu"' in asked


def _is_made_on_host(node: ast.expr, file: PythonFile, depth: int = 4) -> bool:
    """Return whether a tensor is made on the CPU and stays there: torch.ones(3).double()"""
    if isinstance(node, ast.Name) and depth:
        values = [binding.value for binding in file.bindings(node)]
        return bool(values) and all(isinstance(v, ast.expr) and _is_made_on_host(v, file, depth - 1) for v in values)
    if isinstance(node, ast.Subscript):
        return _is_made_on_host(node.value, file, depth)
    if not isinstance(node, ast.Call) or any(keyword.arg in ("device", None) for keyword in node.keywords):
        return False
    name = file.resolve(node.func) or ""
    if name.startswith("torch."):
        return name in _FACTORIES and "set_default_device" not in file.text
    stays = isinstance(node.func, ast.Attribute) and node.func.attr not in ("cuda", "npu")
    types = all((file.resolve(argument) or "").startswith("torch.") for argument in node.args) or method(node) != "to"
    return stays and types and _is_made_on_host(node.func.value, file, depth)  # type: ignore[attr-defined]


def _names_cpu(node: ast.AST, file: PythonFile) -> bool:
    return bool(_CPU.search(file.source(node)))


def _on_cpu(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a statement mentions the CPU."""
    statement = file.statement(node)
    if isinstance(statement, (ast.If, ast.For, ast.With)):
        return False
    return _names_cpu(statement, file)
