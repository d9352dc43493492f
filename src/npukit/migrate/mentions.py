"""Find evidence for CUDA in the code that a question about CUDA decides.

if torch.cuda.is_available(): x = fused_norm(x)
use_flash = x.is_cuda and HAS_FLASH_ATTN
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from npukit.facts import libraries
from npukit.facts.cuda_settings import cuda_settings
from npukit.facts.libraries import named
from npukit.migrate.definitions import cuda_only_names, needed_by_import
from npukit.migrate.evidence import Evidence, evidence_in_attribute, evidence_in_call, evidence_in_text
from npukit.migrate.kernels import Import, imported_modules, names_always_using, unconditional_nodes
from npukit.source import PythonFile, per_file
from npukit.source.nodes import inside, last_name

_LONGEST = 60  # longer strings are not names


def evidence_in_node(node: ast.AST, file: PythonFile) -> tuple[str, str] | None:
    """Return the kind and name of the evidence in a node, or None. Calls are left to `evidence_in_call`."""
    if isinstance(node, ast.Attribute):
        return evidence_in_attribute(node)
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and (library := cuda_related_names(file).get(node.id)):
            return "kernel", library
        return evidence_in_text(node.id)
    if isinstance(node, ast.alias):
        statement = file.parent(node)
        needed = needed_by_import(statement, node, file) if isinstance(statement, Import) else {}
        return evidence_in_text(node.name) or (("kernel", needed["*"]) if "*" in needed else None)
    if isinstance(node, ast.keyword):  # an option that is only passed on shows nothing
        is_passed_on = isinstance(node.value, (ast.Name, ast.Attribute))
        return None if is_passed_on else evidence_in_text(node.arg or "") or _of_setting(node, file)
    if isinstance(node, ast.ImportFrom):
        return evidence_in_text(node.module or "")
    return _of_constant(node, file) if isinstance(node, ast.Constant) else None


def _of_constant(node: ast.Constant, file: PythonFile) -> tuple[str, str] | None:
    text = node.value[:_LONGEST] if isinstance(node.value, str) else ""
    if " " in text or text.startswith("NVTE_"):  # set in the environment of any test
        return None
    choice = file.parent(node)
    given = file.parent(choice) if isinstance(choice, ast.IfExp) else None
    return (evidence_in_text(text) if text else None) or (
        _of_setting(given, file) if isinstance(given, ast.keyword) else None
    )


def _of_setting(given: ast.keyword, file: PythonFile) -> tuple[str, str] | None:
    """Return evidence in a setting: Trainer(accelerator="gpu" if torch.cuda.is_available() else "cpu")"""
    setting, call = cuda_settings().get(given.arg or ""), file.parent(given)
    value = given.value.body if isinstance(given.value, ast.IfExp) else given.value
    if setting is None or setting.data_only or not isinstance(value, ast.Constant) or not isinstance(call, ast.Call):
        return None
    text = str(value.value)
    is_meant = setting.is_for(file.imported) and (not setting.calls or last_name(call.func) in setting.calls)
    return ("api", f"{setting.name}={text}") if is_meant and setting.requests_cuda(text) else None


def first_evidence(nodes: Iterable[ast.AST], texts: Iterable[str], file: PythonFile) -> Evidence | None:
    """Return the first evidence in the unconditional part of some code, or in texts that describe it."""
    nodes = list(nodes)
    where = file.place(next((candidate for candidate in nodes if hasattr(candidate, "lineno")), file.tree))
    for text in texts:
        if library := named(text):
            return Evidence("name", library.name, where)
    for part in nodes:
        for node in unconditional_nodes(part):
            if mention := evidence_in_node(node, file) or evidence_in_call(node, file) or _layout(node):
                return Evidence(*mention, file.place(node))
    return None


def _layout(node: ast.AST) -> tuple[str, str] | None:
    """Return evidence in torch.channels_last, which torch_npu rejects. Other code beside it may run on NPUs."""
    is_layout = isinstance(node, ast.Attribute) and node.attr.startswith("channels_last")
    return ("api", "channels_last") if is_layout else None


@per_file
def cuda_related_names(file: PythonFile) -> dict[str, str]:
    """Return the names that point to CUDA if they stand beside a question about it, each with its library.

    These are the names that only CUDA has, functions of the file that always use them, and names that depend on an
    import.
    """
    library_of = dict(cuda_only_names(file))
    for node in file.names.imports:
        for alias in node.names:
            asname = alias.asname if isinstance(node, ast.Import) else alias.asname or alias.name
            is_short = isinstance(node, ast.Import) or (node.module or "").endswith("transformer_engine")
            library = libraries.named(alias.name if isinstance(node, ast.Import) else node.module or "")
            if is_short and asname and library:
                library_of[asname] = library.name
    for part in file.tree.body:
        names = [inner for statement in part.body for inner in inside(statement)] if isinstance(part, ast.Try) else []
        imported = (module for inner in names if isinstance(inner, Import) for module in imported_modules(inner))
        needed_there = next(filter(None, map(_for_cuda, imported)), "")
        if needed_there:
            stored = (inner.id for inner in names if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store))
            library_of |= dict.fromkeys(stored, needed_there)
    always = names_always_using(frozenset(cuda_only_names(file)), file.tree.body)
    return library_of | {name: "kernels" for name in always if name not in library_of and not name.startswith("test")}


def _for_cuda(module: str) -> str:
    library = libraries.named(module)
    return library.name if library else module if module.endswith("_cuda") else ""


@per_file
def imports_kernels(file: PythonFile) -> bool:
    """Return whether a file imports CUDA kernels, so that its `is_cuda` questions are about them."""
    kernel = re.compile(r"_cuda$|(?:^|[._])kernels$|_ext$")
    for node in file.names.imports:
        for module in imported_modules(node):
            library = libraries.imported(module) or libraries.named(module)
            is_kernel = kernel.search(module) or (library and library.needs_cuda)
            if is_kernel and not module.startswith("apex") and not module.endswith("_to_cuda"):
                return True
    return False
