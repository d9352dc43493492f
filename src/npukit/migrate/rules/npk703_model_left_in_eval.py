"""A model that keeps training in evaluation mode.

After `model.eval()`, dropout is off and batch norm does not update its statistics until `model.train()` is called.

bad:
    import torch
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        for x, y in loader:
            loss_of(model(x), y).backward()
            opt.step()
        model.eval()
        evaluate(model)

good:
    import torch
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(10):
        model.train()
        for x, y in loader:
            loss_of(model(x), y).backward()
            opt.step()
        model.eval()
        evaluate(model)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.training import Loop, calls, enclosing_loops, inside, method, receiver, step_loops
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK703",
    "model-left-in-eval",
    words=("backward",),
    severity=Severity.warning,
    why="Dropout stays off and batch norm stops updating until train() is called.",
    remedy="Call model.train() at the start of every training epoch.",
    effort=Effort(10, 3),
)


@rule.on_call(("eval",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if method(call) != "eval" or call.args or not _is_trained(receiver(call, file), file):
        return
    for loop in _loops_after(call, file):
        first = call.lineno if loop.lineno > call.lineno else loop.lineno
        if not _set_to_train(receiver(call, file), file.function(call), first, loop.end_lineno or loop.lineno, file):
            yield rule.finding(
                (file, call),
                f"{receiver(call, file)} stays in evaluation mode while it trains",
                remedy=f"Call {receiver(call, file)}.train() at the start of every training epoch.",
            )
            return


@rule.on_call(("eval",))
def check_helper(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """An evaluating function that is called between training steps, in a file that never calls train()."""
    function = file.function(call)
    if method(call) != "eval" or call.args or not isinstance(function, ast.FunctionDef):
        return
    if receiver(call, file) not in {argument.arg for argument in function.args.args}:
        return
    if any(method(other) == "train" for other in calls(file)):
        return
    loops = {loop for step in step_loops(file) for loop in [step, *enclosing_loops(step, file)]}
    for call_site in calls(file):
        called = isinstance(call_site.func, ast.Name) and call_site.func.id == function.name
        if called and any(loop in loops for loop in enclosing_loops(call_site, file)):
            yield rule.finding(
                (file, call),
                f"the model stays in evaluation mode after {function.name}()",
            )
            return


def _is_trained(model: str, file: PythonFile) -> bool:
    """Whether an optimizer of this file gets the model's parameters: teachers and encoders that are frozen do not."""
    if not model.replace(".", "").isidentifier():
        return False
    return any(
        f"{model}.parameters()" in file.source(call)
        for call in calls(file)
        if (file.resolve(call.func) or "").startswith("torch.optim.")
    )


def _loops_after(call: ast.Call, file: PythonFile) -> Iterator[Loop]:
    """Loops that train after this call was made: those around both, and those that come later in the same function."""
    function = file.function(call)
    around = set(enclosing_loops(call, file))
    for step in step_loops(file):
        if file.function(step) is function:
            shared = [loop for loop in [step, *enclosing_loops(step, file)] if loop in around]
            if shared:
                yield shared[0]
            elif step.lineno > call.lineno:
                yield step


def _set_to_train(model: str, function: ast.AST, first: int, last: int, file: PythonFile) -> bool:
    return any(
        isinstance(node, ast.Call)
        and method(node) == "train"
        and receiver(node, file).split(".")[0] == model.split(".")[0]
        and first <= node.lineno <= last
        for node in inside(function)
    ) or _helper_trains(function, first, last, file)


def _helper_trains(function: ast.AST, first: int, last: int, file: PythonFile) -> bool:
    """Whether a function of this file that calls train() is called there."""
    trainers = {
        getattr(file.function(call), "name", "") for call in calls(file) if method(call) == "train"
    }  # fmt: skip
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in trainers
        and first <= node.lineno <= last
        for node in inside(function)
    )
