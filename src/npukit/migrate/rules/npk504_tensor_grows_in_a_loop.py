"""A tensor that grows in every iteration of a loop.

bad:
    import torch
    for _ in range(100):
        tokens = torch.cat((tokens, next_token(tokens)), dim=1)

good:
    import torch
    for i in range(100):
        buffer[:, i] = next_token(buffer)
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import enclosing_loop, inside

rule = Rule(
    "NPK504",
    "tensor-grows-in-a-loop",
    words=(".cat", "concat", "hstack", "vstack"),
    needs=("torch",),
    severity=Severity.note,
    why="Each iteration has a new shape and copies everything computed before.",
    remedy="Write into a preallocated tensor. For generation, use a cache of fixed length.",
)


@rule.on_function("torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "torch.vstack")
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    assign = file.parent(call)
    if not isinstance(assign, ast.Assign) or not call.args:
        return
    joined = call.args[0]
    names = {file.source(element) for element in getattr(joined, "elts", ())}
    name, loop = file.source(assign.targets[0]), enclosing_loop(assign, file)
    if name in names and loop is not None and not _set_anew(name, assign, loop, file):
        yield rule.finding((file, assign), "a tensor grows in every iteration of a loop")


def _set_anew(name: str, grows: ast.Assign, loop: ast.AST, file: PythonFile) -> bool:
    """Return whether the loop also assigns another value to a name, so that it does not grow in each turn."""
    targets = [loop.target] if isinstance(loop, ast.For) else []
    for node in inside(loop):
        if isinstance(node, ast.Assign) and node is not grows:
            targets += node.targets
        elif isinstance(node, ast.For):
            targets.append(node.target)
    return any(name == file.source(part) for target in targets for part in ast.walk(target) if hasattr(part, "lineno"))
