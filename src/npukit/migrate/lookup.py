"""Find the names in a file that lead to torch.cuda, without resolving every name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from npukit.facts.cuda_apis import CudaApi, cuda_api, last_names
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.migrate.training import tolerates_failure
from npukit.report import Finding, Severity
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


def may_refer_to(name: ast.expr, names: frozenset[str], file: PythonFile) -> bool:
    """Return whether a name may be one of these, by its last part or alias. Resolving every name takes long."""
    if isinstance(name, ast.Attribute):
        return name.attr in names
    return isinstance(name, ast.Name) and (
        name.id in names or not names.isdisjoint(file.names.aliases.get(name.id, ()))
    )


@per_file
def aliases(file: PythonFile, names: tuple[str, ...] | frozenset[str]) -> frozenset[str]:
    """Return the names by which this file knows what is called one of `names` elsewhere."""
    imported = (alias for node in file.names.imports for alias in node.names)
    assigned = (
        node for node in file.tree.body if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    )
    return frozenset(
        [alias.asname or alias.name for alias in imported if alias.name.rpartition(".")[2] in names]
        + [node.targets[0].id for node in assigned if getattr(node.value, "attr", "") in names]  # type: ignore[attr-defined]
    )


@per_file
def names_from_cuda(file: PythonFile) -> frozenset[str]:
    """Return the names that the file imports from torch.cuda."""
    return frozenset(
        alias.asname or alias.name
        for node in file.names.imports
        for alias in node.names
        if f"{getattr(node, 'module', '')}.{alias.name}".lstrip(".").startswith("torch.cuda")
    )


@dataclass(eq=False, kw_only=True)
class ApiRule(Rule):
    """A rule that finds the names of one kind of facts/cuda_apis.yaml."""

    kind: str
    states: str  # one part of a dotted name

    def __post_init__(self) -> None:
        self.on(ast.Module)(self._used)

    def _used(self, module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
        for node, api in used_apis(file):
            if api.kind == self.kind and not (api.kind == "ignored" and _turns_off(node, file)):
                yield self.finding(
                    (file, node),
                    f"{api.name} {self.states}",
                    why=api.why,
                    remedy=api.remedy_for(goal.target),
                    severity=_severity(node, api, file),
                    subject=api.name,
                )


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
def used_apis(file: PythonFile) -> tuple[tuple[ast.Attribute | ast.Name, CudaApi], ...]:
    """Return every dotted name in the file that the facts know, with its fact."""
    apis = []
    names = last_names() | aliases(file, last_names()) | names_from_cuda(file)  # from torch.cuda.nvtx import mark
    for node in chains(file, last_names(), names):
        is_switch = isinstance(node.ctx, ast.Store) and isinstance(node, ast.Attribute)
        name = file.resolve(node) if isinstance(node.ctx, ast.Load) or is_switch else None
        if name and name.startswith(("torch.", "mmengine.", "ray.")) and (api := cuda_api(name)):
            apis.append((node, api))
    return tuple(apis)
