"""What frameworks with NPUs of their own call the device: code that imports it goes on to use it.

colossalai: get_accelerator().synchronize(), x.to(get_accelerator().get_current_device())
deepspeed:  get_accelerator().synchronize(), x.to(get_accelerator().current_device_name())
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from npukit.source import PythonFile


@dataclass(frozen=True)
class Layer:
    """How code says what, with {} for the function that it has imported; "" where the framework has no word for it."""

    device: str = ""  # the current one, for `to` and `device=`
    kind: str = ""  # "cuda" or "npu"
    backend: str = ""  # "nccl" or "hccl"
    module: str = ""  # what has the functions of torch.cuda


_LAYERS = {
    "colossalai.accelerator.get_accelerator": Layer(
        "{}().get_current_device()", "{}().name", "{}().communication_backend", "{}()"
    ),
    "colossalai.utils.get_current_device": Layer("{}()", "{}().type"),
    "deepspeed.accelerator.get_accelerator": Layer(
        "{}().current_device_name()", "{}().device_name()", "{}().communication_backend_name()", "{}()"
    ),
    "mmengine.device.get_device": Layer("{}()", "{}()"),
    "verl.utils.device.get_device_name": Layer("{}()", "{}()"),
    "verl.utils.device.get_nccl_backend": Layer(backend="{}()"),
    "verl.utils.device.get_torch_device": Layer(module="{}()"),
}
# Functions of torch.cuda that each of these modules has, and that want a device with torch.cuda, too.
_FUNCTIONS = frozenset(("current_device", "current_stream", "default_stream", "set_device", "stream", "synchronize"))


def said(part: str, node: ast.AST, file: PythonFile) -> str:
    """What the file's own framework calls a part of a Layer at a node that runs after the import, or "".

    >>> said("device", call, file)  # from colossalai.accelerator import get_accelerator
    'get_accelerator().get_current_device()'
    """
    if "get_" not in file.text or not _runs_later(node, file):
        return ""
    for statement in file.tree.body:
        if not isinstance(statement, ast.ImportFrom) or statement.level:
            continue
        for alias in statement.names:
            layer = _LAYERS.get(f"{statement.module}.{alias.name}")
            if layer and getattr(layer, part):
                return str(getattr(layer, part)).format(alias.asname or alias.name)
    return ""


def module_with(function: str, node: ast.AST, file: PythonFile) -> str:
    """What the file's own framework calls the module with a function of torch.cuda, or "": some functions raise there
    without a device, where torch.cuda's do nothing, and are used where the file does so itself.

    >>> module_with("synchronize", call, file)
    'get_accelerator()'
    """
    own = said("module", node, file)
    return own if own and (function in _FUNCTIONS or f"{own}.{function}(" in file.text) else ""


def _runs_later(node: ast.AST, file: PythonFile) -> bool:
    """Whether it is in the body of a function: what is asked at import may choose a device too early."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
            return True
        child = parent
    return False
