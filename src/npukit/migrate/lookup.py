"""Find the names in a file that lead to torch.cuda, without resolving every name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.source import PythonFile, per_file


@per_file
def cuda_names(file: PythonFile) -> tuple[tuple[ast.Attribute | ast.Name, str], ...]:
    """Return every dotted name that is torch.cuda or below, with its full name.

    Aliases such as `tc = torch.cuda` are rewritten where they are made, so their uses are not listed. Only names that
    contain `cuda`, or come from an import that does, are followed.
    """
    nodes = chains(file, frozenset({"cuda"}), names_from_cuda(file))
    uses = ((node, name) for node in nodes if (name := _cuda_name(node, file)))
    return tuple(sorted(uses, key=lambda use: (use[0].lineno, use[0].col_offset)))


def chains(file: PythonFile, attributes: frozenset[str], names: frozenset[str]) -> Iterator[ast.Attribute | ast.Name]:
    """Yield every whole dotted name that has one of these attributes or starts with one of these names."""
    seen: set[ast.AST] = set()
    for name in sorted(attributes | names):
        for node in file.by_name.get(name, ()):
            if name not in (attributes if isinstance(node, ast.Attribute) else names):
                continue
            while isinstance(parent := file.parent(node), ast.Attribute):
                node = parent
            if node not in seen:
                seen.add(node)
                yield node


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


@per_file
def names_from_cuda(file: PythonFile) -> frozenset[str]:
    """Return the names that the file imports from torch.cuda."""
    return frozenset(
        alias.asname or alias.name
        for node in file.names.imports
        for alias in node.names
        if f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".").startswith("torch.cuda")
    )
