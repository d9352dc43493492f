"""Data types that a function does not accept on NPUs, where the call names the type.

bad:
    import torch
    x = torch.hann_window(400, dtype=torch.float64)

good:
    import torch
    x = torch.hann_window(400, dtype=torch.float32)
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from npukit.facts.target import Target
from npukit.facts.torch_npu.support import limited
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.support import called_api

rule = Rule(
    "NPK303",
    "type-not-supported",
    words=("dtype",),
    needs=("torch",),
    severity=Severity.warning,
    why="The NPU kernel does not accept this data type.",
    remedy="Convert to one of the types that the finding lists, such as float32, or create the tensor on the CPU.",
    effort=Effort(45, 10),
)

_SHORT = {
    "torch.float64": "fp64",
    "torch.double": "fp64",
    "torch.float32": "fp32",
    "torch.float": "fp32",
    "torch.float16": "fp16",
    "torch.half": "fp16",
    "torch.bfloat16": "bf16",
    "torch.int64": "int64",
    "torch.long": "int64",
    "torch.int32": "int32",
    "torch.int": "int32",
    "torch.int16": "int16",
    "torch.int8": "int8",
    "torch.uint8": "uint8",
    "torch.bool": "bool",
    "torch.complex64": "complex64",
    "torch.complex128": "complex128",
}


def _limited_names(target: Target) -> Mapping[str, frozenset[str]]:
    """Return the last names of functions that do not take every type."""
    return {api.rpartition(".")[2]: frozenset() for api in limited(target, "dtype")}


@rule.on_call(_limited_names)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    wanted = _SHORT.get(file.resolve(file.argument(call, None, "dtype")) or "")
    fact = called_api(call, file, goal) if wanted else None
    taken = fact.types().get("dtype") if fact else None
    if fact and taken and wanted not in taken:
        yield rule.finding(
            (file, call),
            f"{fact.api} does not accept {wanted} on NPUs",
            why=f"It accepts {', '.join(sorted(taken))}. Source: {fact.source}.",
        )
