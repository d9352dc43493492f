"""Double precision on the device.

bad:
    import torch
    torch.set_default_dtype(torch.float64)
    x = torch.zeros(3, dtype=torch.double, device="cuda")

good:
    import torch
    x = torch.zeros(3, dtype=torch.float32, device="cuda")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.training import method
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK709",
    "float64",
    words=("float64", "double"),
    needs=("torch",),
    severity=Severity.warning,
    why="NPUs have no double-precision units: most operators reject float64 or run on the CPU.",
    remedy="Compute in float32, or run this part on the CPU explicitly.",
    effort=Effort(10, 3),
)

_TYPES = {"torch.float64", "torch.double", "torch.complex128", "torch.cdouble", "torch.DoubleTensor"}
_LAST_NAMES = {name.removeprefix("torch.") for name in _TYPES}


@rule.on(ast.Attribute, says=_LAST_NAMES)
def check_name(name: ast.Attribute, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if (
        file.resolve(name) in _TYPES
        and not _is_compared(name, file)
        and not _on_cpu(name, file)
        and not _is_elsewhere(name, file)
    ):
        severity = Severity.note if _made_on_host(name, file) else None
        yield rule.finding((file, name), "double precision is used on the device", severity=severity)


@rule.on_call(("double",))
def check_method(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if method(call) != "double" or call.args or call.keywords or "torch" not in file.text:
        return
    if not (file.resolve(call.func) or "").startswith(("torch.", "numpy.")) and not _on_cpu(call, file):
        yield rule.finding((file, call), "double precision is used on the device")


def _is_compared(name: ast.Attribute, file: PythonFile) -> bool:
    """`x.dtype == torch.float64`, tables of types: the type is only named."""
    return isinstance(file.parent(name), (ast.Compare, ast.Dict, ast.Tuple, ast.List, ast.Set))


def _is_elsewhere(name: ast.Attribute, file: PythonFile) -> bool:
    """torch.float32 if DEVICE.type == "npu" else torch.float64"""
    choice = file.parent(name)
    asked = file.source(choice.test).replace("'", '"') if isinstance(choice, ast.IfExp) else ""
    return isinstance(choice, ast.IfExp) and choice.orelse is name and '"npu"' in asked


def _made_on_host(name: ast.Attribute, file: PythonFile) -> bool:
    """torch.zeros(3, dtype=torch.float64) without a device: it matters only if it is moved to one."""
    call = file.parent(file.parent(name) or name)
    if not isinstance(call, ast.Call) or not (file.resolve(call.func) or "").startswith("torch."):
        return False
    return not any(keyword.arg in ("device", None) for keyword in call.keywords)


def _on_cpu(node: ast.AST, file: PythonFile) -> bool:
    text = (
        file.source(file.statement(node)) if not isinstance(file.statement(node), (ast.If, ast.For, ast.With)) else ""
    )
    return ".cpu()" in text or ".numpy()" in text or '"cpu"' in text or "'cpu'" in text
