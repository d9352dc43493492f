"""The device APIs of frameworks that support NPUs: code that imports one keeps using it.

colossalai: get_accelerator().synchronize(), x.to(get_accelerator().get_current_device())
deepspeed:  get_accelerator().synchronize(), x.to(get_accelerator().current_device_name())
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from npukit.source import PythonFile


@dataclass(frozen=True)
class Layer:
    """The expressions of a framework, with {} for the imported function; "" where the framework has none."""

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
_RARE = frozenset(("Event", "Stream", "reset_peak_memory_stats"))
# Those that do nothing with torch.cuda where there is no device, but raise in a framework.
_MEMORY = ("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved")
_QUIET = frozenset(("empty_cache", "manual_seed", "manual_seed_all", *_MEMORY))


def own_name(part: str, node: ast.AST, file: PythonFile) -> str:
    """The expression for a field of Layer in the framework that the file imports, or "" at a node that runs at import.

    >>> own_name("device", call, file)  # from colossalai.accelerator import get_accelerator
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


def module_with(function: str, node: ast.AST, file: PythonFile, needs_device: Callable[[], bool]) -> str:
    """What the file's own framework calls the module with a function of torch.cuda, or "": some functions raise there
    without a device, where torch.cuda's do nothing, and are used where there is one, or the file does so itself.

    >>> module_with("synchronize", torch_cuda_synchronize, file, lambda: False)
    'get_accelerator()'
    """
    own, call = own_name("module", node, file), file.parent(node)
    if not own or (function[:1].isupper() and not (isinstance(call, ast.Call) and call.func is node)):
        return ""  # isinstance(x, torch.cuda.Stream)
    if function in _FUNCTIONS or f"{own}.{function}(" in file.text:
        return own
    has = function in _RARE or (function in _QUIET and needs_device())
    return own if has and _has_all(file.function(node), file) else ""


def _has_all(around: ast.AST, file: PythonFile) -> bool:
    """Whether the frameworks have everything that a function uses of torch.cuda, so that it does not mix two APIs."""
    modules = (use for use in file.by_name.get("cuda", ()) if file.resolve(use) == "torch.cuda")
    known = _FUNCTIONS | _RARE | _QUIET
    return all(getattr(file.parent(use), "attr", "") in known for use in modules if file.function(use) is around)


def _runs_later(node: ast.AST, file: PythonFile) -> bool:
    """Whether it is in the body of a function: what is asked at import may choose a device too early."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)) and child in parent.body:
            return True
        child = parent
    return False
