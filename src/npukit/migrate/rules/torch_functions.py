"""Functions and types of torch that NPUs lack: without a kernel (NPK301), run on the CPU (NPK302), not for every type
(NPK303), bfloat16 on old cards (NPK304), operators of torch_npu that went (NPK305), sparse tensors (NPK306), names that
torch itself removed (NPK307). The tables are in facts/torch_npu and facts/removed_names.yaml.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from npukit.facts.cards import card
from npukit.facts.removed_names import removed_name, removed_names
from npukit.facts.target import Target
from npukit.facts.torch_npu.support import Support, has_own_op, limited, own_ops, support, unsupported
from npukit.migrate.rule import Findings, Goal, PythonFile, Severity, described
from npukit.migrate.training import method, tolerates_failure

# Reported by other rules, or relevant to the host only.
_ELSEWHERE = (
    *("torch.cuda", "torch.backends", "torch.nn.DataParallel", "torch.nn.parallel.data_parallel", "torch.from_dlpack"),
    *("torch.utils", "torch.compiler", "torch.profiler.", "torch.autograd.profiler", "torch.onnx", "torch.export"),
    *("torch.UntypedStorage", "torch.TypedStorage"),
)
_FACTORIES = {
    f"torch.{name}"
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones"),
        *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
    )
}
_FROM_CPU = re.compile(r"\.cpu\(\)|\bfrom_numpy\(|\bas_tensor\(np\.|\btensor\(np\.")
# Methods that are practically unique to tensors.
_METHODS = {"cholesky_inverse", "digamma", "geqrf", "heaviside_", "index_reduce_", "lgamma", "log_normal_", "logdet"}
_METHODS |= {"matrix_exp", "nextafter", "ormqr", "slogdet", "sparse_mask", "to_mkldnn"}
_SHORT = {"float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "float16": "fp16", "half": "fp16"}
_SHORT |= {"bfloat16": "bf16", "long": "int64", "int": "int32"}
_SHORT |= {name: name for name in ("int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")}
_SPARSE_METHODS = ("to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr")
_SPARSE_FUNCTIONS = tuple(f"torch.sparse_{kind}_tensor" for kind in ("coo", "csr", "csc", "bsr", "compressed"))
_ASKS_FOR_RELEASE = re.compile(r"version|torch_?(?:major|minor)|hasattr", re.IGNORECASE)
described("NPK307").words = tuple(removed_names())


@lru_cache(maxsize=8)
def _unsupported_names(target: Target) -> Mapping[str, frozenset[str]]:
    """Return the last names of functions that may lack a kernel on the target, with their modules or classes.

    Functions of torch itself and methods are listed without a module.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    for api in unsupported(target):
        if not api.startswith(_ELSEWHERE):
            *_, owner, name = api.split(".")
            owners[name].add(owner)
    plain = {name for name in owners if "torch" in owners[name]} | _METHODS
    return {name: frozenset(() if name in plain else owners[name]) for name in {*owners, *plain}}


def _limited_names(target: Target) -> Mapping[str, frozenset[str]]:
    """Return the last names of functions that do not take every type."""
    return {api.rpartition(".")[2]: frozenset() for api in limited(target, "dtype")}


def _called(call: ast.Call, file: PythonFile, goal: Goal) -> Support | None:
    """Return what the facts know about the torch function that is called, by whatever name."""
    name = file.resolve(call.func)
    if name is None and method(call) in _METHODS and "torch" in file.text:
        name = f"torch.Tensor.{method(call)}"
    if not name or not name.startswith("torch.") or name.startswith(_ELSEWHERE) or _on_cpu(call, name, file):
        return None
    return support(name, goal.target)


def _on_cpu(call: ast.Call, name: str, file: PythonFile) -> bool:
    """Return whether a call works on the CPU, because of its device, its input, or a new tensor without a device."""
    device = file.argument(call, None, "device")
    if device is not None:
        return isinstance(device, ast.Constant) and device.value == "cpu"
    if name in _FACTORIES:
        return "set_default_" not in file.text and not any(keyword.arg is None for keyword in call.keywords)
    given = call.func.value if name.startswith("torch.Tensor.") and isinstance(call.func, ast.Attribute) else None
    first = given or (call.args[0] if call.args else None)
    return first is not None and bool(_FROM_CPU.search(file.source(first)))


@described("NPK301").on_call(_unsupported_names)
def without_kernel(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    fact = _called(call, file, goal)
    if fact and fact.status == "no":
        lacks = "has no kernel" if fact.certain else "is documented as unsupported"
        try_it = "Try it before you replace it: functions composed of other operators often work."
        yield described("NPK301").finding(
            (file, call),
            f"{fact.api} {lacks} on {goal.target.card}",
            why=f"Source: {fact.source}.",
            remedy="" if fact.certain else try_it,
            severity=Severity.error if fact.certain else Severity.note,
        )


@described("NPK302").on_call(_unsupported_names)
def run_on_cpu(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    fact = _called(call, file, goal)
    if fact and fact.status == "cpu_fallback":
        lacks = "torch_npu has no kernel for it" if fact.certain else "torch_npu lacks a kernel for some cases"
        yield described("NPK302").finding(
            (file, call),
            f"{fact.api} {'runs' if fact.certain else 'may run'} on the CPU",
            why=f"{lacks}, so tensors are copied to the host and back. Source: {fact.source}.",
            severity=Severity.warning if fact.certain else Severity.note,
        )


@described("NPK303").on_call(_limited_names)
def for_other_types(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    package, _, name = (file.resolve(file.argument(call, None, "dtype")) or "").rpartition(".")
    wanted = _SHORT.get(name) if package == "torch" else None
    fact = _called(call, file, goal) if wanted else None
    taken = fact.types().get("dtype") if fact else None
    if fact and taken and wanted not in taken:
        yield described("NPK303").finding(
            (file, call),
            f"{fact.api} does not accept {wanted} on NPUs",
            why=f"It accepts {', '.join(sorted(taken))}. Source: {fact.source}.",
        )


@described("NPK304").on(ast.Attribute, says=("bfloat16",))
def bfloat16(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if card(goal.target.card).bf16:
        return
    used = isinstance(file.parent(name), (ast.Call, ast.keyword, ast.Assign)) and file.resolve(name) == "torch.bfloat16"
    called = isinstance(file.parent(name), ast.Call) and file.resolve(name) is None
    if used or called:
        yield described("NPK304").finding((file, name), f"{goal.target.card} does not support bfloat16")


@described("NPK305").on(ast.Call)
def own_operator(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    op = name.removeprefix("torch_npu.")
    own_op = own_ops().get(op)
    if name == op or own_op is None or has_own_op(op, goal.target.torch_npu):
        return
    yield described("NPK305").finding(
        (file, call),
        f"{op} is deprecated" if own_op.instead else f"{op} is missing in torch_npu {goal.target.torch_npu}",
        remedy=f"Use {own_op.instead}." if own_op.instead not in ("", "-") else "Use plain torch operators.",
    )


@described("NPK306").on(ast.Call)
def sparse(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    if method(call) in _SPARSE_METHODS or name in _SPARSE_FUNCTIONS or name.startswith("torch.sparse."):
        yield described("NPK306").finding((file, call), "sparse tensors cannot be multiplied on NPUs")


@described("NPK307").on(ast.ImportFrom, ast.Import)
def import_of_removed(node: ast.ImportFrom | ast.Import, file: PythonFile, goal: Goal) -> Findings:
    """Report removed modules and names that are imported: from torch._six import inf"""
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
    if not prefix and isinstance(node, ast.ImportFrom):
        return  # a module of the project
    names = [prefix + alias.name for alias in node.names]
    yield from _removed(next((name for name in names if removed_name(name, goal.target.torch)), ""), node, file, goal)


@described("NPK307").on(ast.Attribute, says={name.rpartition(".")[2] for name in removed_names()})
def use_of_removed(node: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    """Report removed functions that are called: torch.symeig(a)"""
    if isinstance(node.ctx, ast.Load) and (name := file.resolve(node)) in removed_names():
        yield from _removed(name, node, file, goal)


def _removed(name: str, node: ast.AST, file: PythonFile, goal: Goal) -> Findings:
    removed = removed_name(name, goal.target.torch)
    if removed is None or _is_for_another_release(node, file):
        return
    yield described("NPK307").finding(
        (file, node),
        f"{name} is not in torch {removed.missing_from} and newer",
        remedy=removed.instead,
        severity=Severity.note if tolerates_failure(node, file) else None,
        subject=removed.name,
    )


def _is_for_another_release(node: ast.AST, file: PythonFile) -> bool:
    """Return whether code is only for another release: if TORCH_MAJOR < 2: from torch._six import inf"""
    tests = (ancestor.test for ancestor in file.ancestors(node) if isinstance(ancestor, (ast.If, ast.IfExp)))
    return any(_ASKS_FOR_RELEASE.search(file.source(test)) for test in tests)
