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
import re

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

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
_CARDS = re.compile(r"cuda|npu|nccl|hccl|accelerator|device", re.IGNORECASE)
_ARGUMENTS = {
    "torch.distributed.init_process_group": (3, "world_size"),
    "torch.multiprocessing.spawn": (2, "nprocs"),
    "torch.multiprocessing.spawn.spawn": (2, "nprocs"),
}


@rule.on_function(*_ARGUMENTS)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    position, name = _ARGUMENTS[file.resolve(call.func) or ""]
    size = file.argument(call, position, name)
    if isinstance(size, ast.Name):
        values = [binding.value for binding in file.bindings(size) if binding.kind == "assign"]
        size = values[0] if len(values) == 1 else size
    if isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value > 1 and _uses_cards(call, file):
        yield rule.finding(
            (file, call),
            "the number of processes is hard-coded",
            remedy="" if goal.names_devices else _OLD,
            evidence=f"{name}={size.value}",
        )


def _uses_cards(call: ast.Call, file: PythonFile) -> bool:
    """Return whether each process may need a card, which gloo and functions without devices do not."""
    first = file.argument(call, 0, "backend") or file.argument(call, 0, "fn")
    if isinstance(first, ast.Constant):
        return first.value not in ("gloo", "mpi")
    functions = {node.name: node for node in file.of_type(ast.FunctionDef)}
    names = [first.id] if isinstance(first, ast.Name) and first.id in functions else []
    texts = [] if names else [file.text]
    while names:
        if function := functions.pop(names.pop(), None):
            texts.append(file.source(function))
            names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    return any(_CARDS.search(text) for text in texts)
