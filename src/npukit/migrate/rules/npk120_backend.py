"""Use the accelerator's communication backend instead of NCCL.

before:           dist.init_process_group("nccl")
after (npu):      dist.init_process_group("hccl")
after (portable): dist.init_process_group("hccl" if hasattr(torch, "npu") else "nccl")

Where the file has a device of its own, the portable style asks for its backend: get_default_backend_for_device(device).
Names in variables, defaults, options and dictionaries are rewritten as well, and so is "cpu:gloo,cuda:nccl".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate import torch_imports
from npukit.migrate.decision import stays
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.sinks import BACKEND, chosen_by_device, is_choice, reaches
from npukit.migrate.styles import style_of
from npukit.migrate.styles.style import Edits, distributed_name, in_place
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK120",
    "nccl-backend",
    words=("nccl", "gloo", "collective_group"),
    fixes=True,
    why="NCCL runs on CUDA devices only. NPUs communicate through HCCL.",
    remedy='Use "hccl" on NPUs, or torch.distributed.get_default_backend_for_device(device), which fits every device.',
    effort=Effort(15, 5),
)

_LITERAL = re.compile(
    r"""[rRuU]*("{3}|'{3}|"|')(?P<before>(?:\w+:\w+,)*)(?P<pair>(?:cuda:)?nccl)(?P<after>(?:,[\w:,]*)?)\1"""
)

_RAY = "Ray's collective groups have no backend for NPUs."
_GLOO = 'Use "gloo" with tensors on the CPU, or torch.distributed.'
_CPU = "Gloo communicates tensors on the CPU and on CUDA devices, and none on NPUs."
_CHOOSE = "Choose hccl where the tensors are on an NPU."
_UNCLEAR = "npukit cannot see where the string is used, so it did not change it."
_OTHER_WAYS = re.compile(r"""["'](?:nvshmem|nixl|ipc)["']""")


@rule.on(ast.Constant, says=("nccl",))
def check(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if isinstance(file.parent(node), ast.JoinedStr):
        return
    match = _LITERAL.fullmatch(file.source(node))
    kept = _why_kept(node, file)
    is_unclear = node.value == "nccl" and _is_given_by_position(node, file)
    if not match or not (kept or is_unclear or reaches(node, BACKEND, file)) or stays(node, file, goal):
        return
    if is_unclear:
        what = f"{file.source(node)} looks like a backend"
        yield rule.finding((file, node), what, why=_UNCLEAR, severity=Severity.warning)
        return
    if kept:
        yield rule.finding((file, node), f"{file.source(node)} runs on CUDA devices only", why=kept)
        return
    if _is_name_of_the_project(node, file):
        edits: tuple[Edit, ...] = ()
    elif is_choice(node, file):
        edits = (file.insert(file.span(node)[1], f", {match[1]}hccl{match[1]}"),)
    else:
        edits = _edits(node, match, file, goal)
    yield rule.finding(
        (file, node),
        f"{file.source(node)} runs on CUDA devices only",
        edits=edits,
    )


def _is_given_by_position(node: ast.AST, file: PythonFile) -> bool:
    """groups.get(ranks, "nccl")"""
    call = file.parent(node)
    func = call.func if isinstance(call, ast.Call) and node in call.args[1:] else None
    return isinstance(func, ast.Attribute) and func.attr == "get" and not reaches(node, BACKEND, file)


def _is_name_of_the_project(node: ast.AST, file: PythonFile) -> bool:
    """Engine(backend="nccl", options={"nccl": {"rebuild": True}}): other code goes by the same name."""
    parent = file.parent(node)
    if isinstance(parent, (ast.List, ast.Tuple)):  # ["nvshmem", "nccl", "gloo"], of which torch has two
        return bool(_OTHER_WAYS.search(file.source(parent)))
    call = file.parent(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or (file.resolve(call.func) or "") in BACKEND.calls:
        return False
    around = file.function(node)
    keys = (key for mapping in file.by_type.get(ast.Dict, ()) for key in mapping.keys)  # type: ignore[attr-defined]
    return any(getattr(key, "value", "") == "nccl" and file.function(key) is around for key in keys if key)


def _why_kept(node: ast.Constant, file: PythonFile) -> str:
    """Why another backend would not do: Ray has none for NPUs, and options of NCCL are for NCCL."""
    around, statement = file.parent(node), file.function(node)
    of_ray = isinstance(around, ast.Call) and _is_of_ray(around.func, file)
    if of_ray or (isinstance(around, (ast.Dict, ast.arguments)) and _groups_by_ray(around, file)):
        return _RAY
    with_options = isinstance(around, ast.keyword) and statement is not file.tree
    if with_options and "ProcessGroupNCCL.Options" in file.source(statement):
        return "The process group gets options of NCCL, which HCCL does not take."
    return ""


@rule.on(ast.Constant, says=("gloo",))
def of_the_cpu(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """backend: Literal["gloo", "nccl"] = "gloo", in a script that trains on a GPU"""
    if node.value != "gloo" or "cuda" not in file.text or "init_process_group" not in file.text:
        return
    parent = file.parent(node)
    by_default = isinstance(parent, (ast.AnnAssign, ast.arguments)) or getattr(parent, "arg", "") == "default"
    if by_default and reaches(node, BACKEND, file) and not stays(node, file, goal):
        what = "the backend is gloo unless another is chosen"
        yield rule.finding((file, node), what, why=_CPU, remedy=_CHOOSE, severity=Severity.warning)


def _is_of_ray(func: ast.expr, file: PythonFile) -> bool:
    return (file.resolve(func) or "").startswith("ray.util.collective")


def _groups_by_ray(around: ast.Dict | ast.arguments, file: PythonFile) -> bool:
    """Whether it is for a group of Ray: def join(rank, backend="nccl"): collective.init_collective_group(...)"""
    if not file.imports("ray.util.collective") or isinstance(around, ast.Dict):
        return file.imports("ray.util.collective")
    function = file.parent(around)
    return function is not None and any(
        isinstance(node, ast.Call) and _is_of_ray(node.func, file) for node in ast.walk(function)
    )


@rule.on_call(("init_collective_group", "create_collective_group"))
def of_ray(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """collective.init_collective_group(world_size, rank), which means NCCL"""
    position = 2 if getattr(call.func, "attr", getattr(call.func, "id", "")).startswith("init") else 3
    if _is_of_ray(call.func, file) and file.argument(call, position, "backend") is None:
        yield rule.finding((file, call), "Ray's collective groups use NCCL by default", why=_RAY, remedy=_GLOO)


@rule.on(ast.Attribute, says=("NCCL",))
def member(node: ast.Attribute, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if isinstance(file.parent(node), (ast.Compare, ast.Dict)):
        return
    if file.resolve(node) != "torch.distributed.Backend.NCCL" or stays(node, file, goal):
        return
    backend = style_of(goal).backend(node, file, goal)
    edits = (*backend.edits, file.replace(node, backend.text)) if backend else ()
    yield rule.finding((file, node), "Backend.NCCL runs on CUDA devices only", edits=edits)


def _edits(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
    if match["before"] or match["after"] or match["pair"] != "nccl":
        backend = style_of(goal).backends(node, file.source(node), file, goal)
        return (*backend.edits, file.replace(node, in_place(backend.text, node, file))) if backend else ()
    choice = file.parent(node)
    by_device = chosen_by_device(choice.test, file) if isinstance(choice, ast.IfExp) else None
    backend = style_of(goal).backend(node, file, goal)
    if backend is None:
        return ()
    renamed = (*backend.edits, file.replace(node, backend.text))
    if by_device:
        asked = file.replace(by_device, _of_device(by_device, match[1], file, goal))
        return style_of(goal).either((asked,), renamed, file)
    return renamed


def _of_device(choice: ast.IfExp, quote: str, file: PythonFile, goal: Goal) -> str:
    """The backend of a device that the code asks about, in place of "nccl" if device == "cuda" else "gloo"."""
    device = file.source(choice.test.left)  # type: ignore[attr-defined]
    if goal.names_devices and torch_imports.written_at_top(choice, file):
        return f"{distributed_name(file)}.get_default_backend_for_device({device})"
    return f'{{"cuda": "nccl", "npu": "hccl"}}.get({device}, "gloo")'.replace('"', quote)
