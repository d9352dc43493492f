"""The channels_last memory format.

torch_npu accepts contiguous tensors only: `.to(memory_format=torch.channels_last)` raises on an NPU tensor. If it is
called before the move to the device, the move undoes it.

bad:
    import torch
    model = model.to(memory_format=torch.channels_last)

good:
    import torch
    if torch.cuda.is_available():
        model = model.to(memory_format=torch.channels_last)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import tolerates_failure

rule = Rule(
    "NPK710",
    "channels-last",
    words=("channels_last",),
    why="torch_npu accepts contiguous tensors only, and chooses internal layouts itself.",
    remedy="Do not set the memory format on NPUs.",
    effort=Effort(10, 3),
)


_FORMATS = ("torch.channels_last", "torch.channels_last_3d")


@rule.on(ast.Attribute)
def check(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if not name.attr.startswith("channels_last") or file.resolve(name) not in _FORMATS or tolerates_failure(name, file):
        return
    if isinstance(file.parent(name), (ast.keyword, ast.Call)):
        conditional = any(isinstance(ancestor, ast.If) for ancestor in file.ancestors(name))
        yield rule.finding(
            (file, name), "channels_last is rejected on NPUs", severity=Severity.warning if conditional else None
        )
