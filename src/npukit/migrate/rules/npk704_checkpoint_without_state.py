"""A checkpoint that omits the state of the scaler, the scheduler or the random number generators.

A resumed run starts with a new loss scale, a new learning rate or other random numbers, so its losses diverge from
those of an uninterrupted run. If only the random number generators are missing, this is a note: few runs have to match
that closely.

bad:
    import torch
    scaler = torch.amp.GradScaler()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)

good:
    import torch
    scaler = torch.amp.GradScaler()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    state["scaler"] = scaler.state_dict()
    state["rng"] = torch.get_rng_state()
    torch.save(state, path)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import GRAD_SCALERS, assigned_from, method, receiver

rule = Rule(
    "NPK704",
    "checkpoint-without-state",
    words=("torch.save", "save("),
    needs=("torch",),
    severity=Severity.warning,
    why="A run that resumes from it restarts them, so its losses diverge from those of an uninterrupted run.",
    remedy="Save and restore the state_dict() of optimizer, scheduler and scaler with that of the model.",
    effort=Effort(10, 3),
)

_RANDOM = ("get_rng_state", "get_rng_state_all", "getstate", "get_state")
_STATELESS = {"torch.optim.lr_scheduler.LambdaLR"}


@rule.on_function("torch.save")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    saved = _dictionary(call.args[0], file) if call.args else None
    if saved is None or not _is_for_resuming(saved, file):
        return
    schedulers = {
        file.resolve(other.func) or ""
        for other in file.of_type(ast.Call)
        if (file.resolve(other.func) or "").startswith("torch.optim.lr_scheduler.")
    }
    stateful = {"scaler": assigned_from(file, GRAD_SCALERS), "scheduler": assigned_from(file, schedulers - _STATELESS)}
    kept = {receiver(other, file) for other in file.of_type(ast.Call) if method(other) == "state_dict"}
    missing = [kind for kind, names in stateful.items() if names and not kept & set(names)]
    keeps_random = any(method(other) in _RANDOM for other in file.of_type(ast.Call))
    if missing or not keeps_random:
        parts = [f"the state of the {' and the '.join(missing)}"] if missing else []
        parts += [] if keeps_random else ["the random number generators"]
        states = [f"{kind}.state_dict()" for kind in missing] + ([] if keeps_random else ["torch.get_rng_state()"])
        yield rule.finding(
            (file, call),
            f"the checkpoint omits {' and '.join(parts)}",
            remedy=f"Save and restore {' and '.join(states)} as well.",
            severity=None if missing else Severity.note,
        )


def _dictionary(node: ast.expr, file: PythonFile) -> ast.Dict | None:
    if isinstance(node, ast.Name):
        values = [binding.value for binding in file.bindings(node) if binding.value is not None]
        node = values[0] if len(values) == 1 else node
    return node if isinstance(node, ast.Dict) else None


def _is_for_resuming(saved: ast.Dict, file: PythonFile) -> bool:
    """Whether it holds an optimizer's state: what holds weights alone is an export."""
    return any(
        isinstance(value, ast.Call) and method(value) == "state_dict" and "opt" in receiver(value, file).lower()
        for value in saved.values
    )
