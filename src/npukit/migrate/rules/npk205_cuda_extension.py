"""Extensions compiled with nvcc, at install time or at run time.

bad:
    from torch.utils.cpp_extension import CUDAExtension
    setup(ext_modules=[CUDAExtension("ops", ["ops.cpp", "ops_kernel.cu"])])

good:
    from torch.utils.cpp_extension import CppExtension
    setup(ext_modules=[CppExtension("ops", ["ops.cpp"])])
"""

from __future__ import annotations

import ast

from npukit.facts.kernels import kernel_named
from npukit.migrate.rule import Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.training import tolerates_failure

rule = Rule(
    "NPK205",
    "cuda-extension",
    words=("cpp_extension",),
    why="The build needs nvcc, which NPU machines do not have.",
    remedy="Use the pure PyTorch path on NPUs, or build an operator with torch_npu's NpuExtension.",
    effort=Effort(120, 30),
)


@rule.on_call(("CUDAExtension", "load", "load_inline"))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    if not name.startswith("torch.utils.cpp_extension."):
        return
    last = name.rpartition(".")[2]
    given = file.source(call)
    if last == "CUDAExtension" or (last in ("load", "load_inline") and ("cuda" in given.lower() or ".cu" in given)):
        strings = [
            node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        known = kernel_named(strings)
        yield rule.finding(
            (file, call),
            f"{last} compiles CUDA code",
            remedy=known.remedy(goal.target) if known else "",
            subject=known.name if known else "",
            severity=Severity.warning if tolerates_failure(call, file) else None,
        )
