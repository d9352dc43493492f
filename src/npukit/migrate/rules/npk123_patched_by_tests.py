"""Tests that replace functions of torch.cuda.

bad:
    from unittest.mock import patch
    with patch("torch.cuda.empty_cache") as emptied:
        release()

good:
    from unittest.mock import patch
    with patch.object(device_module, "empty_cache") as emptied:
        release()
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.cuda_files import evidence_for_file
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity

rule = Rule(
    "NPK123",
    "patched-by-tests",
    words=("cuda",),
    needs=("patch", "monkeypatch"),
    severity=Severity.warning,
    why="Where torch_npu is installed, migrated code calls torch.npu instead, and the replacement is never used.",
    remedy="Replace the function that the migrated code calls, or run the test without torch_npu.",
    effort=Effort(15, 5),
)

_CUDA = re.compile(r"torch\.cuda\.(\w+)")


@rule.on_call(("patch", "object", "setattr"))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    given = [_name(argument, file) for argument in call.args[:2]]
    by_name = given and isinstance(call.args[0], ast.Constant)
    name = given[0] if by_name else ".".join(given)
    if _CUDA.fullmatch(name) and re.search(r"mock|patch", file.source(call.func)) and not evidence_for_file(file):
        yield rule.finding((file, call), f"the test replaces {name}", subject=name)


def _name(given: ast.expr, file: PythonFile) -> str:
    """Return the dotted name of what a test replaces, such as "torch.cuda.synchronize" or torch.cuda."""
    if isinstance(given, ast.Constant):
        return str(given.value)
    return file.resolve(given) or ("torch.cuda" if file.source(given).endswith(".torch.cuda") else "")
