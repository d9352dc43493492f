"""A value read back from the device in every training step.

`.item()` waits until the device has finished all queued work, so the next step is queued on an idle device. Queueing
takes longer on NPUs, so this costs more than on GPUs.

bad:
    for x, y in loader:
        loss = loss_of(model(x), y)
        loss.backward()
        total += loss.item()

good:
    for i, (x, y) in enumerate(loader):
        loss = loss_of(model(x), y)
        loss.backward()
        total += loss.detach()
        if i % 100 == 0:
            print(total.item())
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import enclosing_loop, method, receiver, runs_every_turn, step_loops

rule = Rule(
    "NPK708",
    "value-read-in-every-step",
    words=(".item(",),
    needs=("backward",),
    severity=Severity.warning,
    why="Each read waits for the device. NPUs depend on a filled queue more than GPUs do.",
    remedy="Accumulate tensors with .detach() and read them every N steps.",
    effort=Effort(10, 3),
)


@rule.on_call(("item",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "item" or call.args:
        return
    loop = enclosing_loop(call, file)
    if loop is None or loop not in step_loops(file) or not runs_every_turn(call, loop, file):
        return
    reads = [node for node in ast.walk(file.statement(call)) if method(node) == "item"]
    if reads[0] is call:  # once a statement
        yield rule.finding(
            (file, call),
            ".item() is called in every training step",
            evidence=f"{receiver(call, file)}.item()" if "\n" in file.source(call) else "",
        )
