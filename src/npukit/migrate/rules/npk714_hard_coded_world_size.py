"""A hard-coded number of processes.

bad:
    import torch.distributed as dist
    dist.init_process_group("nccl", rank=rank, world_size=4)

good:
    import torch.distributed as dist
    dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK714",
    "hard-coded-world-size",
    words=("world_size", "nprocs"),
    needs=("torch",),
    severity=Severity.warning,
    why="NPU servers have 8 or 16 cards. With a wrong number of processes, HCCL waits until it times out.",
    remedy='Take it from the launcher: int(os.environ["WORLD_SIZE"]) or torch.accelerator.device_count().',
    effort=Effort(10, 3),
)

_OLD = 'Take it from the launcher: int(os.environ["WORLD_SIZE"]).'  # torch.accelerator is newer
_ARGUMENTS = {
    "torch.distributed.init_process_group": (3, "world_size"),
    "torch.multiprocessing.spawn": (2, "nprocs"),
    "torch.multiprocessing.spawn.spawn": (2, "nprocs"),
}


@rule.on_call({name.rpartition(".")[2] for name in _ARGUMENTS})
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    position, name = _ARGUMENTS.get(file.resolve(call.func) or "", (None, ""))
    size = file.argument(call, position, name) if name else None
    if isinstance(size, ast.Name):
        values = [binding.value for binding in file.bindings(size) if binding.kind == "assign"]
        size = values[0] if len(values) == 1 else size
    if isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value > 1:
        yield rule.finding(
            (file, call),
            "the number of processes is hard-coded",
            remedy="" if goal.names_devices else _OLD,
            evidence=f"{name}={size.value}",
        )
