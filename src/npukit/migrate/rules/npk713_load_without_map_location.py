"""Checkpoints loaded without map_location.

bad:
    import torch
    state = torch.load("model.pt")

good:
    import torch
    state = torch.load("model.pt", map_location="cpu")
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import has_double_star

rule = Rule(
    "NPK713",
    "load-without-map-location",
    words=("load",),
    needs=("torch",),
    severity=Severity.warning,
    why="Tensors saved on a CUDA device name that device. Without CUDA, loading them raises.",
    remedy='Pass map_location="cpu" and move the model afterwards.',
    effort=Effort(10, 3),
)

_LOADERS = {"torch.load": 1, "torch.hub.load_state_dict_from_url": 2, "torch.utils.model_zoo.load_url": 2}
_DATA = re.compile(r"cache|dataset|feature|vocab|token|label|sample|batch", re.IGNORECASE)  # made on the CPU
_DATA_CLASS = re.compile(r"dataset|database|data_?module", re.IGNORECASE)
_MODEL = re.compile(r"model|ckpt|checkpoint|weight|state|\.pth\b", re.IGNORECASE)


@rule.on_function(*_LOADERS)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    position = _LOADERS[file.resolve(call.func) or ""]
    if has_double_star(call) or file.argument(call, position, "map_location") is not None:
        return
    path = file.source(call.args[0]) if call.args else ""
    is_data = _DATA.search(path) or _DATA_CLASS.search(getattr(file.class_around(call), "name", ""))
    if _is_saved_beside(path, call, file) or (is_data and not _MODEL.search(path)):
        return
    yield rule.finding((file, call), "checkpoints saved on CUDA need map_location")


def _is_saved_beside(path: str, call: ast.Call, file: PythonFile) -> bool:
    """Return whether the same function saves what it loads, so that the machine has the device."""
    scope = next((outer for outer in file.ancestors(call) if isinstance(outer, (ast.FunctionDef, ast.Module))), None)
    return any(
        isinstance(node, ast.Call)
        and file.resolve(node.func) == "torch.save"
        and len(node.args) > 1
        and file.source(node.args[1]) == path
        for node in (ast.walk(scope) if isinstance(scope, ast.FunctionDef) and "save" in file.by_name else ())
    )
