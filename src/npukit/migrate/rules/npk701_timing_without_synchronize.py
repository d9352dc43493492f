"""Time measured without waiting for the device.

Operators are queued, and the clock is read before the NPU has run them. Code that copies a value back in between
(`.item()`, `.cpu()`) has already waited, and is not reported.

bad:
    import time
    def step(model, x):
        start = time.time()
        loss = model(x)
        loss.backward()
        print(time.time() - start)

good:
    import time
    import torch
    def step(model, x):
        start = time.time()
        loss = model(x)
        loss.backward()
        torch.accelerator.synchronize()
        print(time.time() - start)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import inside, method
from npukit.source.nodes import last_name

rule = Rule(
    "NPK701",
    "timing-without-synchronize",
    words=("time.", "perf_counter"),
    needs=("backward",),
    severity=Severity.warning,
    why="Operators are queued asynchronously, so the clock measures how long queueing took.",
    remedy="Call torch.accelerator.synchronize() (or torch.npu.synchronize()) before each clock reading.",
    effort=Effort(10, 3),
)

_OLD = "Call torch.npu.synchronize() before each clock reading."  # torch.accelerator is newer
_CLOCKS = {"time.time", "time.perf_counter", "time.monotonic", "time.time_ns", "time.perf_counter_ns"}
_WAITS = {"synchronize", "item", "cpu", "tolist", "numpy", "wait", "elapsed_time"}


@rule.on(ast.BinOp)
def check(difference: ast.BinOp, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(difference.op, ast.Sub) or not isinstance(difference.right, ast.Name):
        return
    if not (_is_clock(difference.left, file) or _reads_clock(difference.left, file)):
        return
    clocks = [binding.value for binding in file.bindings(difference.right) if _is_clock(binding.value, file)]
    starts = [clock.lineno for clock in clocks if clock and clock.lineno < difference.lineno]
    if not starts:
        return
    between = [
        node
        for node in inside(file.function(difference))
        if isinstance(node, ast.Call) and max(starts) <= node.lineno <= difference.lineno
    ]
    if any(method(call) == "backward" for call in between) and not any(_waits(call) for call in between):
        yield rule.finding(
            (file, difference),
            "the time is taken before the device has finished",
            remedy="" if goal.names_devices else _OLD,
        )


def _is_clock(node: ast.AST | None, file: PythonFile) -> bool:
    return isinstance(node, ast.Call) and file.resolve(node.func) in _CLOCKS


def _reads_clock(node: ast.AST, file: PythonFile) -> bool:
    return isinstance(node, ast.Name) and any(_is_clock(binding.value, file) for binding in file.bindings(node))


def _waits(call: ast.Call) -> bool:
    name = last_name(call.func)
    return name in _WAITS or "synchronize" in name
