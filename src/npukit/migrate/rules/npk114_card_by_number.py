"""Qualify card indices with a device type.

before:           model.to(int(os.environ["LOCAL_RANK"]))  # on cuda
after (portable): model.to(torch.device(DEVICE.type, int(os.environ["LOCAL_RANK"])))  # on cuda

A bare index selects a card of the accelerator, and is an error if there is none. Tests are left alone. Only values
that are known to be integers are rewritten: literals, calls of int(), ranks, parameters annotated as int, and
attributes set from these.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.patches import is_test
from npukit.migrate.rule import Effort, Rule
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK114",
    "card-by-number",
    words=("cuda",),
    severity=Severity.warning,
    fixes=True,
    why="A bare index is an error on a machine without an accelerator.",
    remedy='Add the device type: torch.device("npu", index) instead of a bare index.',
    effort=Effort(15, 5),
)

_RANKS = ("int", "torch.distributed.get_rank", "torch.distributed.get_node_local_rank")
_DEPTH = 4


@rule.on_call(("to",))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not goal.portable or "cuda" not in file.text or is_test(file.path):  # which wants its cards
        return
    if not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return
    number = call.args[0]
    if not _is_number(number, file) or writing.guarded(call, file) or writing.stays(call, file, goal):
        return
    kind = writing.device_type(call, file, goal)
    torch = writing.torch_name(file)
    if kind is None:
        return
    yield rule.finding(
        (file, call),
        "a card is selected by its index alone",
        edits=[
            *kind.edits,
            *torch.edits,
            file.replace(number, f"{torch.text}.device({kind.text}, {file.source(number)})"),
        ],
    )


def _is_number(node: ast.expr | None, file: PythonFile, depth: int = _DEPTH) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        return file.resolve(node.func) in _RANKS
    if isinstance(node, ast.Name) and depth:
        found = file.bindings(node)
        return bool(found) and all(
            _is_number(each.value, file, depth - 1)
            if each.kind == "assign"
            else isinstance(each.node, ast.arg) and _is_int(each.node.annotation)
            for each in found
        )
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self" and depth:
        given = list(_given_to(node.attr, file))
        return bool(given) and all(_is_number(value, file, depth - 1) for value in given)
    return False


def _is_int(annotation: ast.expr | None) -> bool:
    return isinstance(annotation, ast.Name) and annotation.id == "int"


def _given_to(attribute: str, file: PythonFile) -> Iterator[ast.expr]:
    """Everything that is assigned to self.ATTRIBUTE in this file."""
    for node in file.nodes:
        if isinstance(node, ast.Assign) and any(
            isinstance(each, ast.Attribute) and each.attr == attribute for each in node.targets
        ):
            yield node.value
