"""Code that is compiled for CUDA: CUDA C++ (NPK204), extensions that nvcc builds (NPK205), Triton kernels (NPK206),
torch.compile (NPK209) and TorchScript (NPK711).
"""

from __future__ import annotations

import ast
import re

from npukit.facts.kernels import kernel_named
from npukit.migrate.rule import Document, Findings, Goal, Place, PythonFile, Severity, described
from npukit.migrate.training import tolerates_failure

_KERNEL = re.compile(r"__global__\s+(?:__launch_bounds__\([^)]*\)\s*)?[\w:<>\s*]*?(\w+)\s*\(")
_INCLUDE = re.compile(r'#\s*include\s*[<"]([^>"]*(?:cuda|cublas|cudnn|nccl|thrust/|cub/)[^>"]*)[>"]', re.IGNORECASE)
_WITH_TRITON = "Or run the kernel with triton-ascend and smaller blocks."
_SCRIPTED = {"torch.jit.script", "torch.jit.script_if_tracing", "torch.jit.script_method"}
_LAST_NAMES = frozenset(name.rpartition(".")[2] for name in _SCRIPTED)


@described("NPK204").on_text("cuda")
def cuda_source(document: Document, goal: Goal) -> Findings:
    kernels = [match[1] for match in _KERNEL.finditer(document.text)]
    kernel_list = f", kernels {', '.join(kernels[:4])}{', …' if len(kernels) > 4 else ''}" if kernels else ""
    known = kernel_named([document.path.stem, *kernels])
    yield described("NPK204").finding(
        Place(document.path),
        "CUDA source",
        remedy=known.remedy(goal.target) if known else "",
        evidence=f"{len(document.text.splitlines())} lines{kernel_list}",
        subject=known.name if known else "",
    )


@described("NPK204").on_text("cpp")
def cuda_header(document: Document, goal: Goal) -> Findings:
    if match := _INCLUDE.search(document.text):
        yield described("NPK204").finding(
            (document, match.span()),
            "C++ source that includes CUDA headers",
            why="CUDA headers are missing on an NPU machine.",
            severity=Severity.note,
        )


@described("NPK205").on_call(("CUDAExtension", "load", "load_inline"))
def extension(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    package, _, function = (file.resolve(call.func) or "").rpartition(".")
    given = file.source(call)
    if package != "torch.utils.cpp_extension" or not (
        function == "CUDAExtension" or "cuda" in given.lower() or ".cu" in given
    ):
        return
    texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    known = kernel_named(texts)
    yield described("NPK205").finding(
        (file, call),
        f"{function} compiles CUDA code",
        remedy=known.remedy(goal.target) if known else "",
        subject=known.name if known else "",
        severity=Severity.warning if tolerates_failure(call, file) else None,
    )


@described("NPK206").on(ast.FunctionDef)
def triton_kernel(function: ast.FunctionDef, file: PythonFile, goal: Goal) -> Findings:
    for decorator in function.decorator_list:
        if file.resolve(decorator.func if isinstance(decorator, ast.Call) else decorator) == "triton.jit":
            known = kernel_named([function.name, file.path.stem])
            yield described("NPK206").finding(
                (file, function),
                "Triton kernels need triton-ascend and their own tuning",
                remedy=f"{known.remedy(goal.target)} {_WITH_TRITON}" if known else "",
                evidence=f"def {function.name}",
                subject=known.name if known else "",
            )


@described("NPK209").on_function("torch.compile")
def compiled(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    backend = file.argument(call, None, "backend")
    if backend is None or (isinstance(backend, ast.Constant) and backend.value in ("inductor", "cudagraphs")):
        yield from _by_default_backend(call, file)


@described("NPK209").on(ast.FunctionDef)
def compiled_by_decorator(function: ast.FunctionDef, file: PythonFile, goal: Goal) -> Findings:
    for decorator in function.decorator_list:
        if file.resolve(decorator) == "torch.compile":
            yield from _by_default_backend(decorator, file)


def _by_default_backend(node: ast.AST, file: PythonFile) -> Findings:
    what = "torch.compile uses its default backend, which needs triton-ascend on NPUs"
    yield described("NPK209").finding((file, node), what)


@described("NPK711").on(ast.Attribute, ast.Name)
def scripted(name: ast.Attribute | ast.Name, file: PythonFile, goal: Goal) -> Findings:
    if isinstance(name.ctx, ast.Load) and _may_be_scripting(name, file) and file.resolve(name) in _SCRIPTED:
        yield described("NPK711").finding((file, name), "TorchScript does not fuse operators on NPUs")


def _may_be_scripting(name: ast.Attribute | ast.Name, file: PythonFile) -> bool:
    """Return whether a name may be one of TorchScript's, by its last part or alias. Resolving every name takes long."""
    if isinstance(name, ast.Attribute):
        return name.attr in _LAST_NAMES
    return name.id in _LAST_NAMES or not _LAST_NAMES.isdisjoint(file.names.aliases.get(name.id, ()))
