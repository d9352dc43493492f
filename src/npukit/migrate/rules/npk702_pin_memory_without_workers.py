"""Pinned memory in a data loader without workers.

With num_workers=0, the main process loads data, copies it into pinned memory and trains, one after the other. Pinning
costs a copy and overlaps with nothing.

bad:
    from torch.utils.data import DataLoader
    loader = DataLoader(dataset, batch_size=32, pin_memory=True)

good:
    from torch.utils.data import DataLoader
    loader = DataLoader(dataset, batch_size=32, pin_memory=True, num_workers=4)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import has_double_star, is_true

rule = Rule(
    "NPK702",
    "pin-memory-without-workers",
    words=("pin_memory",),
    severity=Severity.note,
    why="A single process loads and trains in turns, so the additional copy overlaps with nothing.",
    remedy="Set num_workers to 4 or more, or remove pin_memory.",
)


@rule.on_call(("DataLoader",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if (file.resolve(call.func) or "").rpartition(".")[2] != "DataLoader" or has_double_star(call):
        return
    workers = file.argument(call, 5, "num_workers")
    none = workers is None or (isinstance(workers, ast.Constant) and workers.value == 0)
    if none and is_true(file.argument(call, 7, "pin_memory")):
        yield rule.finding((file, call), "pin_memory=True has no benefit without workers")
