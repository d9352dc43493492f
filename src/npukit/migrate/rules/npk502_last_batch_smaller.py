"""A training data loader whose last batch is smaller.

bad:
    from torch.utils.data import DataLoader
    loader = DataLoader(dataset, batch_size=32, shuffle=True)

good:
    from torch.utils.data import DataLoader
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import has_double_star, is_true

rule = Rule(
    "NPK502",
    "last-batch-smaller",
    words=("DataLoader",),
    needs=("torch",),
    severity=Severity.note,
    why="The second shape makes every operator of the step compile or look up its kernel again.",
    remedy="Add drop_last=True to the training loader.",
)


@rule.on_function("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    batch = file.argument(call, 1, "batch_size")
    single = batch is None or (isinstance(batch, ast.Constant) and batch.value in (1, None))
    shuffled = is_true(file.argument(call, 2, "shuffle")) or _samples_for_training(call, file)
    if shuffled and not single and not has_double_star(call) and file.argument(call, 8, "drop_last") is None:
        yield rule.finding((file, call), "the last batch of an epoch has a different shape")


def _samples_for_training(call: ast.Call, file: PythonFile) -> bool:
    sampler = file.argument(call, 3, "sampler")
    return isinstance(sampler, ast.Name) and "train" in sampler.id
