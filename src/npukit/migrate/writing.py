"""The words of each style: how migrated code names the device, and the lines that this needs at the head of a file.

portable:  DEVICE = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
npu:       import torch_npu
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from npukit.migrate import compat
from npukit.migrate.goal import Goal
from npukit.source import Edit, PythonFile

_GUARD = re.compile(r"cuda|gpu|npu|accelerator|(?-i:\bDEVICE\b)", re.IGNORECASE)
_NPU = re.compile(r"ASCEND_|(?<![A-Za-z])npu(?![a-z])|hccl|transfer_to_npu", re.IGNORECASE)
_NPU_QUICKLY = re.compile(r"npu(?![a-z])(?<![a-z]npu)")  # in lower case; a search that starts with letters is quick
# Code that asks whether there are NPUs chooses among devices itself; neither style writes these names.
_CHOOSES_NPU = re.compile(r"\b(?:is_(?:torch_|ascend_)?npu_available|(?:has|is|use)_npu)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Text:
    """Code to write, and the edits elsewhere in the file without which it would not run."""

    text: str
    edits: tuple[Edit, ...] = ()


def torch_name(file: PythonFile) -> Text:
    """What torch is called at the top of this file; it is imported where it is not."""
    for node in file.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                    return Text(alias.asname or "torch")
    return Text("torch", (file.insert_import("import torch", after="torch"),))


def import_torch_npu(file: PythonFile) -> tuple[Edit, ...]:
    """`import torch_npu` below `import torch`; nothing where it is imported, or where torch is not used."""
    if file.imports("torch_npu") or not any(name.split(".")[0] == "torch" for name in file.imported):
        return ()
    return (file.insert_import("import torch_npu", after="torch"),)


def device(file: PythonFile, goal: Goal) -> Text:
    """The device as a torch.device."""
    torch = torch_name(file)
    if not goal.portable:
        return Text(f'{torch.text}.device("npu")', import_torch_npu(file))
    own = _own_constant(file)
    if own:
        return Text(own)
    taken = "DEVICE" in file.text and any(isinstance(node, ast.Name) and node.id == "DEVICE" for node in file.nodes)
    name = "ACCELERATOR" if taken else "DEVICE"
    api = accelerator(file, goal)
    line = f'{name} = {api.text}.current_accelerator(check_available=True) or {torch.text}.device("cpu")'
    below = torch.edits[0].start if torch.edits else below_torch(file)
    return Text(name, (*api.edits, file.insert_line(below, file.newline + line)))


def device_type(file: PythonFile, goal: Goal, quote: str = '"') -> Text:
    """The kind of device as a string expression."""
    if not goal.portable:
        return Text(f"{quote}npu{quote}", import_torch_npu(file))
    name = device(file, goal)
    return Text(f"{name.text}.type", name.edits)


def device_module(file: PythonFile, goal: Goal) -> Text:
    """The module with the device's functions: torch.npu, or the one of whatever device there is."""
    torch = torch_name(file)
    if not goal.portable:
        return Text(f"{torch.text}.npu", (*torch.edits, *import_torch_npu(file)))
    name = device(file, goal)
    owner = torch.text if goal.has_accelerator else accelerator(file, goal).text
    return Text(f"{owner}.get_device_module({name.text})", name.edits)


def accelerator(file: PythonFile, goal: Goal) -> Text:
    """torch.accelerator as this file writes it; for a torch without it, the module that takes its place."""
    torch = torch_name(file)
    if goal.has_accelerator:
        return Text(f"{torch.text}.accelerator", torch.edits)
    statement = compat.home_of(file.path)[1]
    imported = any(isinstance(each, ast.alias) and each.name == compat.NAME for each in file.nodes)
    return Text(compat.NAME, torch.edits if imported else (*torch.edits, file.insert_import(statement, after="torch")))


def default_backend(file: PythonFile, goal: Goal) -> Text:
    """The communication backend of the device."""
    name = device(file, goal)
    module = distributed_name(file) if goal.has_accelerator else accelerator(file, goal).text
    return Text(f"{module}.get_default_backend_for_device({name.text})", name.edits)


def distributed_name(file: PythonFile) -> str:
    """What torch.distributed is called at the top of this file."""
    for node in file.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.distributed" and alias.asname:
                    return alias.asname
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            for alias in node.names:
                if alias.name == "distributed":
                    return alias.asname or alias.name
    return f"{torch_name(file).text}.distributed"


def _own_constant(file: PythonFile) -> str | None:
    """The name of the constant that an earlier migration wrote."""
    for node in file.tree.body:
        ours = isinstance(node, ast.Assign) and "current_accelerator(check_available=True) or" in file.source(node)
        if ours and isinstance(target := node.targets[0], ast.Name):  # type: ignore[attr-defined]
            return target.id
    return None


def below_torch(file: PythonFile) -> int:
    """The offset below the run of imports that torch's import is in."""
    seen = False
    end = 0
    for node in file.tree.body:
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        if seen and not is_import:
            break
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names):
            seen = True
        end = file.line_end(node)
    return end


@lru_cache(maxsize=4)
def cuda_names(file: PythonFile) -> tuple[tuple[ast.Attribute | ast.Name, str], ...]:
    """Every chain that is torch.cuda or below with its full name, where it is read from an import, not from an alias.

    What an alias stands for (tc = torch.cuda) is rewritten where it is made. Only chains that have `cuda` in them, or
    come from an import that has, are followed.
    """
    found = chains(file, frozenset({"cuda"}), _names_from_cuda(file))
    return tuple((node, name) for node in found if (name := _cuda_name(node, file)))


def chains(file: PythonFile, attributes: frozenset[str], names: frozenset[str]) -> Iterator[ast.Attribute | ast.Name]:
    """Every whole dotted name that has one of these attributes or starts with one of these names: to resolve all of
    them takes long."""
    seen: set[ast.AST] = set()
    for node in file.nodes:
        kind = type(node)
        if (kind is ast.Attribute and node.attr in attributes) or (kind is ast.Name and node.id in names):  # type: ignore[attr-defined]
            while isinstance(parent := file.parent(node), ast.Attribute):
                node = parent
            if node not in seen:
                seen.add(node)
                yield node  # type: ignore[misc]


def _cuda_name(node: ast.Attribute | ast.Name, file: PythonFile) -> str | None:
    root: ast.AST = node
    written = False
    while type(root) is ast.Attribute:
        written = written or root.attr == "cuda"
        root = root.value
    if type(root) is not ast.Name or not isinstance(node.ctx, ast.Load):
        return None
    imports = [binding.target for binding in file.bindings(root) if binding.kind == "import"]
    if not written and not any(target.startswith("torch.cuda") for target in imports):
        return None
    name = file.resolve(node)
    if name is None or not (name == "torch.cuda" or name.startswith("torch.cuda.")):
        return None
    is_alias = not imports and (file.resolve(root) or "").startswith("torch.cuda")
    return None if is_alias else name


def may_be(func: ast.expr, names: tuple[str, ...] | frozenset[str], file: PythonFile) -> bool:
    """Whether a function that is called may be one of these, by its last name or that of its import: to resolve every
    call takes long."""
    if isinstance(func, ast.Attribute):
        return func.attr in names
    return isinstance(func, ast.Name) and (func.id in names or func.id in aliases(file, names))


@lru_cache(maxsize=16)
def aliases(file: PythonFile, names: tuple[str, ...] | frozenset[str]) -> frozenset[str]:
    """The names that this file gives to what is called one of `names` elsewhere."""
    imported = (alias for node in file.names.imports for alias in node.names)
    assigned = (
        node for node in file.tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    )
    return frozenset(
        [alias.asname or alias.name for alias in imported if alias.name.rpartition(".")[2] in names]
        + [node.targets[0].id for node in assigned if getattr(node.value, "attr", "") in names]  # type: ignore[attr-defined]
    )


@lru_cache(maxsize=4)
def _names_from_cuda(file: PythonFile) -> frozenset[str]:
    """The names that imports from torch.cuda give to what they import."""
    return frozenset(
        alias.asname or alias.name
        for node in file.names.imports
        for alias in node.names
        if f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".").startswith("torch.cuda")
    )


@lru_cache(maxsize=4)
def _speaks_of_npus(file: PythonFile) -> bool:
    lowered = file.text.lower()
    return "hccl" in lowered or "ascend_" in lowered or bool(_NPU_QUICKLY.search(lowered))


def guarded(node: ast.AST, file: PythonFile) -> bool:
    """Whether the node runs only where a condition about the device holds."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            inside = child is not parent.test and child not in _as_list(parent.orelse)
            if inside and _GUARD.search(file.source(parent.test)):
                return True
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: parent.values.index(child)] if child in parent.values else []
            if any(_GUARD.search(file.source(each)) for each in before):
                return True
        child = parent
    return False


def _as_list(value: list[ast.stmt] | ast.expr | None) -> list[ast.AST]:
    return list(value) if isinstance(value, list) else [value] if value is not None else []


def serves_npu_already(node: ast.AST, file: PythonFile) -> bool:
    """Whether the code around the node (its function, else its statement or class) knows of NPUs already, or its file
    asks for them."""
    if not _speaks_of_npus(file):
        return False
    around: ast.AST = file.function(node)
    if around is file.tree:
        around = node
        for parent in file.ancestors(node):
            if parent is file.tree:
                break
            around = parent
    if file.imports("torch_npu.contrib.transfer_to_npu") or _CHOOSES_NPU.search(file.text):
        return True
    return bool(_NPU.search(file.source(around)))
