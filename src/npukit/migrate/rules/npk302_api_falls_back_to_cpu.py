"""Functions of torch that torch_npu computes on the CPU: copied there and back in every call.

bad:
    import torch
    d = torch.linalg.det(x)

good:
    import torch
    q = torch.linalg.qr(x)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.rule import Rule
from npukit.migrate.rules.npk301_api_not_supported import called_api
from npukit.migrate.target import Target
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule("NPK302", "api-falls-back-to-cpu", words=("torch",), severity=Severity.warning)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, target: Target) -> Iterator[Finding]:
    found = called_api(call, file, target)
    if found and found.status == "cpu_fallback":
        certain = "dispatcher" in found.source
        yield rule.finding(
            (file, call),
            f"{found.api} {'runs' if certain else 'may run'} on the CPU",
            why=f"{'torch_npu has no kernel for it' if certain else 'In some cases torch_npu has no kernel for it'}:"
            f" tensors are then copied to the host and back. Source: {found.source}.",
            remedy="Keep it out of the training step, or compute it from operators that have a kernel.",
            severity=Severity.warning if certain else Severity.note,
        )
