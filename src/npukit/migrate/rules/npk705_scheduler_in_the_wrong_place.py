"""A learning-rate scheduler stepped before the optimizer, or at the wrong frequency.

Stepping the scheduler first skips the first value of the schedule. OneCycleLR counts batches, and has to be stepped
after every one.

bad:
    for epoch in range(10):
        scheduler.step()
        for x, y in loader:
            loss_of(model(x), y).backward()
            optimizer.step()

good:
    for epoch in range(10):
        for x, y in loader:
            loss_of(model(x), y).backward()
            optimizer.step()
        scheduler.step()
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import assigned_from, enclosing_loop, inside, method, receiver, step_loops

rule = Rule(
    "NPK705",
    "scheduler-in-the-wrong-place",
    words=("sched",),
    severity=Severity.warning,
    why="The learning rate does not follow the schedule.",
    remedy="Step the scheduler after optimizer.step(), once per batch or epoch as it expects.",
    effort=Effort(10, 3),
)


@rule.on_call(("step",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "step" or "sched" not in receiver(call, file).lower():
        return
    loop = enclosing_loop(call, file)
    if loop is None:
        return
    optimizers = [
        node
        for node in inside(loop)
        if isinstance(node, ast.Call) and method(node) == "step" and "opt" in receiver(node, file).lower()
    ]
    in_order = sorted(optimizers, key=lambda optimizer: optimizer.lineno)
    if in_order and call.lineno < in_order[0].lineno and _is_plain(call, loop, file):
        yield rule.finding(
            (file, call),
            "the scheduler is stepped before the optimizer",
            why="The first learning rate of the schedule is never used.",
            remedy="Move it after optimizer.step().",
        )
    one_cycle = assigned_from(file, ["torch.optim.lr_scheduler.OneCycleLR"])
    steps = step_loops(file)
    if receiver(call, file) in one_cycle and loop not in steps and any(node in steps for node in inside(loop)):
        yield rule.finding(
            (file, call),
            "OneCycleLR is stepped once per epoch",
            why="OneCycleLR counts batches, so the learning rate hardly changes.",
            remedy="Step it after every optimizer.step().",
        )


def _is_plain(call: ast.Call, loop: ast.AST, file: PythonFile) -> bool:
    """Whether it is a statement of the loop's own body: what hangs on a condition has its reasons."""
    return file.parent(file.statement(call)) is loop
