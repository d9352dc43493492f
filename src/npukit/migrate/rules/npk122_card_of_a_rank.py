"""Pass device_ids only when there is an accelerator.

before:           model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])  # by nccl
after (portable): model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank] if DEVICE.type != "cpu" else None)  # by nccl

DistributedDataParallel rejects device_ids on the CPU, and init_process_group rejects device_id. Code that runs only if
there is a device is not changed, nor are files that do not mention CUDA otherwise. With a torch before 2.7 the process
group stays NCCL's or HCCL's, which never runs on the CPU, and nothing is changed.
"""  # noqa: E501

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK122",
    "card-of-a-rank",
    words=("device_id",),
    severity=Severity.warning,
    fixes=True,
    why="torch rejects device_ids and device_id on the CPU.",
    remedy="Pass device_ids=None on the CPU, and [local_rank] on an accelerator.",
    effort=Effort(15, 5),
)

_TAKERS = {
    "torch.nn.parallel.DistributedDataParallel": ("device_ids", "output_device"),
    "torch.nn.parallel.distributed.DistributedDataParallel": ("device_ids", "output_device"),
    "torch.distributed.init_process_group": ("device_id",),
}
# None and conditions are right already; a condition behind a lambda or := would become part of it.
_LEFT_ALONE = (ast.Constant, ast.IfExp, ast.BoolOp, ast.Lambda, ast.NamedExpr)
_NAMES = {name for names in _TAKERS.values() for name in names}


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not (goal.portable and goal.names_devices) or not any(keyword.arg in _NAMES for keyword in call.keywords):
        return
    takes = _TAKERS.get(file.resolve(call.func) or "", ())
    named = [keyword.value for keyword in call.keywords if keyword.arg in takes]
    named = [value for value in named if not isinstance(value, _LEFT_ALONE)]
    if not named:
        return
    about_cuda = "cuda" in file.text or "nccl" in file.text
    if not about_cuda or writing.guarded(call, file) or writing.stays(call, file, goal):
        return
    kind = writing.device_type(call, file, goal)
    if kind is None:
        return
    yield rule.finding(
        (file, call),
        "device_ids requires an accelerator",
        edits=[
            *kind.edits,
            *(file.insert(file.span(value)[1], f' if {kind.text} != "cpu" else None') for value in named),
        ],
    )
