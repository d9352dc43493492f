"""The reference page of the Python API, read from the sources, so that torch need not be imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import npukit

PUBLIC = {  # how it is imported: where it is defined, and the methods that are public
    "npukit.train.TrainOptions": ("train/options.py", ()),
    "npukit.train.Trainer": ("train/trainer.py", ("train",)),
    "npukit.precision.capture": ("precision/__init__.py", ()),
    "npukit.explain.explain": ("explain/explanation.py", ()),
    "npukit.explain.explain_logs": ("explain/explanation.py", ()),
    "npukit.simulate.activate": ("simulate/environment.py", ()),
    "npukit.simulate.environment": ("simulate/environment.py", ()),
    "npukit.migrate.analysis.analyze": ("migrate/analysis.py", ()),
    "npukit.facts.target.Target": ("facts/target.py", ("parse",)),
    "npukit.facts.cards.card": ("facts/cards.py", ()),
}


def page() -> str:
    """Every public name with its signature and its docstring."""
    lines = ["# Python API", "", "Names that are not on this page may change without notice."]
    for name, (file, methods) in PUBLIC.items():
        lines += ["", *_entry(name, Path(npukit.__file__).parent / file, methods)]
    return "\n".join(lines) + "\n"


def _entry(name: str, file: Path, methods: tuple[str, ...]) -> Iterator[str]:
    module, _, short = name.rpartition(".")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    definition = next(node for node in tree.body if getattr(node, "name", "") == short)
    assert isinstance(definition, ast.FunctionDef | ast.ClassDef)
    yield f"## {name}"
    yield ""
    yield from ("```python", f"from {module} import {short}", "", _signature(definition), "```", "")
    yield from _docstring(ast.get_docstring(definition) or "")
    for method in definition.body:
        if isinstance(method, ast.FunctionDef) and method.name in methods:
            yield from ("", f"### {short}.{method.name}", "", "```python", _signature(method), "```", "")
            yield from _docstring(ast.get_docstring(method) or "")


def _signature(node: ast.FunctionDef | ast.ClassDef) -> str:
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        return f"{node.name}({ast.unparse(node.args)}){returns}"
    start = next((item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)
    return f"class {node.name}" if start is None else f"{node.name}({ast.unparse(start.args).removeprefix('self, ')})"


def _docstring(text: str) -> Iterator[str]:
    """The docstring with its examples in blocks."""
    inside = False
    for line in text.splitlines():
        if line.startswith(">>>") and not inside:
            inside = True
            yield "```python"
        elif inside and not line.strip():
            inside = False
            yield "```"
        yield line
    if inside:
        yield "```"
