"""CUDA's tensor types.

bad:
    import torch
    torch.set_default_tensor_type("torch.cuda.FloatTensor")

good:
    import torch
    torch.set_default_device(device)
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule

rule = Rule(
    "NPK160",
    "default-tensor-type",
    words=("cuda",),
    why="CUDA tensor types do not exist on an NPU machine.",
    remedy="Set the default device and the dtype separately: torch.set_default_device, x.to(device, torch.float16).",
    effort=Effort(15, 5),
)

_TYPE = re.compile(r"torch\.cuda\.\w+Tensor")


@rule.on_call(("set_default_tensor_type", "type"))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Rewrite torch.set_default_tensor_type(TYPE) and x.type(TYPE), where TYPE is a string or a class."""
    given = call.args[0] if len(call.args) == 1 else None
    name = given.value if isinstance(given, ast.Constant) else file.resolve(given)
    if isinstance(name, str) and _TYPE.fullmatch(name) and not is_kept(call, file, goal):
        yield rule.finding((file, call), f"{name} is a CUDA tensor type")
