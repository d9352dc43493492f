"""A DistributedSampler without set_epoch().

bad:
    from torch.utils.data.distributed import DistributedSampler
    sampler = DistributedSampler(dataset)
    for epoch in range(10):
        train(loader)

good:
    from torch.utils.data.distributed import DistributedSampler
    sampler = DistributedSampler(dataset)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        train(loader)
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK707",
    "sampler-without-set-epoch",
    words=("DistributedSampler",),
    needs=("torch",),
    severity=Severity.warning,
    why="Every epoch visits the data in the same order.",
    remedy="Call sampler.set_epoch(epoch) at the start of every epoch.",
    effort=Effort(10, 3),
)


@rule.on_call(("DistributedSampler",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if not (file.resolve(call.func) or "").startswith("torch.utils.data") or "set_epoch" in file.text:
        return
    if not (file.resolve(call.func) or "").endswith(".DistributedSampler"):
        return
    if call.args and re.search("val|test|eval", file.source(call.args[0]).lower()):
        return  # in which order it evaluates does not matter
    shuffle = file.argument(call, 3, "shuffle")
    if shuffle is not None and not (isinstance(shuffle, ast.Constant) and shuffle.value):
        return
    if any("epoch" in file.source(loop.target) for loop in file.of_type(ast.For)):
        yield rule.finding((file, call), "set_epoch() is never called on this sampler")
