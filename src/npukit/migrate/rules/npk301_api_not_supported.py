"""torch functions that torch_npu does not support.

bad:
    import torch
    y = torch.hspmm(a, b)

good:
    import torch
    y = torch.mm(a.to_dense(), b)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.facts.torch_npu.support import Support, support
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.training import method
from npukit.report import Finding, Severity
from npukit.source import PythonFile

rule = Rule(
    "NPK301",
    "api-not-supported",
    words=("torch",),
    severity=Severity.warning,
    why="torch_npu has no kernel for this function.",
    remedy="Replace the function, or run this part on the CPU.",
    effort=Effort(45, 10),
)

# Told by rules of their own, or only about the host.
_ELSEWHERE = (
    "torch.cuda",
    "torch.backends",
    "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel",
    "torch.utils.cpp_extension",
    "torch.compiler",
    "torch.profiler.",
    "torch.onnx",
    "torch.export",
    "torch.UntypedStorage",
    "torch.TypedStorage",
    "torch.autograd.profiler",
    "torch.from_dlpack",
    "torch.utils",
)


# Methods that hardly anything but a tensor has.
_METHODS = {
    "cholesky_inverse",
    "digamma",
    "geqrf",
    "heaviside_",
    "index_reduce_",
    "lgamma",
    "log_normal_",
    "logdet",
    "matrix_exp",
    "nextafter",
    "ormqr",
    "slogdet",
    "sparse_mask",
    "to_mkldnn",
}


def called_api(call: ast.Call, file: PythonFile, goal: Goal) -> Support | None:
    """What is known about the function of torch that is called, through whatever name."""
    name = file.resolve(call.func)
    if name is None and method(call) in _METHODS and "torch" in file.text:
        name = f"torch.Tensor.{method(call)}"
    if not name or not name.startswith("torch.") or name.startswith(_ELSEWHERE):
        return None
    return support(name, goal.target)


@rule.on(ast.Call)
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    found = called_api(call, file, goal)
    if found and found.status == "no":
        yield rule.finding(
            (file, call),
            f"{found.api} {'has no kernel' if found.certain else 'is documented as unsupported'} on {goal.target.card}",
            why=f"Source: {found.source}.",
            remedy=""
            if found.certain
            else "Try it before you replace it: functions composed of other operators often work.",
            severity=Severity.error if found.certain else Severity.note,
        )
