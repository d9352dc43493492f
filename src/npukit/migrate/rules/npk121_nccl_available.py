"""Check for the accelerator's backend instead of NCCL.

before:           ok = dist.is_nccl_available()
after (npu):      ok = dist.is_hccl_available()
after (portable): ok = dist.is_backend_available(dist.get_default_backend_for_device(DEVICE))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding
from npukit.source import PythonFile

rule = Rule(
    "NPK121",
    "nccl-available",
    words=("is_nccl_available",),
    fixes=True,
    why="NPUs communicate through HCCL, so the code falls back to a slower backend.",
    remedy='Ask for the backend that is used: torch.distributed.is_backend_available("hccl") on NPUs.',
    effort=Effort(15, 5),
)


@rule.on_call(("is_nccl_available",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if file.resolve(call.func) != "torch.distributed.is_nccl_available" or writing.stays(call, file, goal):
        return
    distributed = writing.distributed_name(file)
    if goal.portable:
        backend = writing.default_backend(call, file, goal)
        if backend is None:
            return
        edits = (*backend.edits, file.replace(call, f"{distributed}.is_backend_available({backend.text})"))
    else:
        edits = (*writing.import_torch_npu(file), file.replace(call, f"{distributed}.is_hccl_available()"))
    yield rule.finding((file, call), "is_nccl_available() is False on NPUs", edits=edits)
