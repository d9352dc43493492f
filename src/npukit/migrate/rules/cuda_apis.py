"""Names of torch's CUDA API that have no counterpart on NPUs (NPK201), behave differently (NPK202) or have no effect
(NPK203), according to facts/cuda_apis.yaml; CUDA's tensor types (NPK160); functions that tests replace (NPK123).
"""

from __future__ import annotations

import ast
import re

from npukit.facts.cuda_apis import CudaApi, cuda_api, last_names
from npukit.migrate.cuda_files import evidence_for_file
from npukit.migrate.decision import is_kept
from npukit.migrate.lookup import chains, names_from_cuda
from npukit.migrate.rule import Findings, Goal, PythonFile, Severity, described
from npukit.migrate.training import tolerates_failure
from npukit.source import per_file

_STATES = {
    "none": (described("NPK201"), "has no counterpart on NPUs"),
    "differs": (described("NPK202"), "behaves differently on NPUs"),
    "ignored": (described("NPK203"), "has no effect on NPUs"),
}
_TYPE = re.compile(r"torch\.cuda\.\w+Tensor")
_FUNCTION = re.compile(r"torch\.cuda\.(\w+)")


def _report(kind: str) -> None:
    """Let the rule of one kind of names report their uses."""
    rule, states = _STATES[kind]

    @rule.on(ast.Module)
    def check(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
        for node, api in _used(file):
            if api.kind == kind and not (kind == "ignored" and _turns_off(node, file)):
                yield rule.finding(
                    (file, node),
                    f"{api.name} {states}",
                    why=api.why,
                    remedy=api.remedy_for(goal.target),
                    severity=_severity(node, api, file),
                    subject=api.name,
                )


for _kind in _STATES:
    _report(_kind)


def _severity(node: ast.AST, api: CudaApi, file: PythonFile) -> Severity | None:
    """Return a note if a failure is caught, an error if importing the file fails, else the rule's own severity."""
    if tolerates_failure(node, file):
        return Severity.note
    takes_part = api.is_none and file.resolve(node) != api.name  # torch.version.cuda.split(".")
    if takes_part and isinstance(file.parent(file.statement(node)), ast.Module):
        is_guarded = any(isinstance(parent, ast.IfExp | ast.BoolOp | ast.Lambda) for parent in file.ancestors(node))
        return None if is_guarded else Severity.error
    return None


def _turns_off(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a setting is turned off: cudnn.benchmark = False"""
    value = getattr(file.parent(node), "value", None)
    return isinstance(value, ast.Constant) and value.value is False


@per_file
def _used(file: PythonFile) -> tuple[tuple[ast.Attribute | ast.Name, CudaApi], ...]:
    """Return every dotted name in the file that the facts know, with its fact."""
    apis = []
    names = last_names() | _aliases(file) | names_from_cuda(file)  # from torch.cuda.nvtx import mark
    for node in chains(file, last_names(), names):
        is_switch = isinstance(node.ctx, ast.Store) and isinstance(node, ast.Attribute)
        name = file.resolve(node) if isinstance(node.ctx, ast.Load) or is_switch else None
        if name and name.startswith(("torch.", "mmengine.", "ray.")) and (api := cuda_api(name)):
            apis.append((node, api))
    return tuple(apis)


def _aliases(file: PythonFile) -> frozenset[str]:
    """Return the names by which a file knows what the facts know: from torch.cuda import nvtx as marks"""
    imported = (alias for node in file.names.imports for alias in node.names)
    assigned = (
        node for node in file.tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    )
    return frozenset(
        [alias.asname or alias.name for alias in imported if alias.name.rpartition(".")[2] in last_names()]
        + [node.targets[0].id for node in assigned if getattr(node.value, "attr", "") in last_names()]  # type: ignore[attr-defined]
    )


@described("NPK201").on(ast.Module)
def private(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    """Report private functions: torch._C._cuda_attach_out_of_memory_observer(...)"""
    for last in [name for name in file.by_name if name.startswith("_cuda_")]:
        for node in file.by_name[last]:
            if file.resolve(node) == f"torch._C.{last}":
                new = f"torch_npu._C._npu_{last.removeprefix('_cuda_')}"
                yield described("NPK201").finding(
                    (file, node),
                    f"torch._C.{last} exists only in a torch that is built for CUDA",
                    remedy=f"Use {new} on NPUs, where it exists.",
                    severity=Severity.note if tolerates_failure(node, file) else None,
                    subject=f"torch._C.{last}",
                )


@described("NPK202").on_call(("_record_memory_history",))
def old_arguments(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Report old arguments: torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=100000)"""
    if any((keyword.arg or "").startswith("trace_alloc_") for keyword in call.keywords):
        yield described("NPK202").finding(
            (file, call.func),
            "torch_npu's _record_memory_history does not take the arguments of torch 2.0",
            why="It raises a TypeError for trace_alloc_max_entries and trace_alloc_record_context.",
            remedy='Use _record_memory_history(enabled="all", max_entries=...), which torch.cuda takes as well.',
        )


@described("NPK160").on_call(("set_default_tensor_type", "type"))
def tensor_type(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Report torch.set_default_tensor_type(TYPE) and x.type(TYPE), where TYPE is a string or a class."""
    given = call.args[0] if len(call.args) == 1 else None
    name = given.value if isinstance(given, ast.Constant) else file.resolve(given)
    if isinstance(name, str) and _TYPE.fullmatch(name) and not is_kept(call, file, goal):
        yield described("NPK160").finding((file, call), f"{name} is a CUDA tensor type")


@described("NPK123").on_call(("patch", "object", "setattr"))
def replaced(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    given = [_replaced_name(argument, file) for argument in call.args[:2]]
    by_name = given and isinstance(call.args[0], ast.Constant)
    name = given[0] if by_name else ".".join(given)
    if _FUNCTION.fullmatch(name) and re.search(r"mock|patch", file.source(call.func)) and not evidence_for_file(file):
        yield described("NPK123").finding((file, call), f"the test replaces {name}", subject=name)


def _replaced_name(given: ast.expr, file: PythonFile) -> str:
    """Return the dotted name of what a test replaces, such as "torch.cuda.synchronize" or torch.cuda."""
    if isinstance(given, ast.Constant):
        return str(given.value)
    return file.resolve(given) or ("torch.cuda" if file.source(given).endswith(".torch.cuda") else "")
