"""Find code that captures or replays CUDA graphs."""

from __future__ import annotations

import ast
import re

from npukit.migrate.kernels import Definition
from npukit.source import PythonFile, per_file

_GRAPH = re.compile(r"cuda_?graph(?!able)(?!s?_?(?:enabled|scope|impl|config|mode|flag))", re.IGNORECASE)
_CAPTURES = ("CUDAGraph", "make_graphed_callables", "graph_pool_handle")
_DEFINITIONS: tuple[type[Definition], ...] = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def graph_around(node: ast.AST, file: PythonFile) -> ast.AST | None:
    """Return the outermost function, class or file around a node that captures or replays CUDA graphs.

    NPUs have graphs under another name, and streams, events and tensors that are captured stay with the graph.

    >>> graph_around(stream, file)  # class CUDAGraphRunner: def capture(self): s = torch.cuda.Stream()
    <ast.ClassDef object>
    """
    if not _mentions_graphs(file):
        return None
    if _GRAPH.search(file.path.stem):
        return file.tree
    around = [ancestor for ancestor in (node, *file.ancestors(node)) if isinstance(ancestor, Definition)]
    return next((definition for definition in reversed(around) if definition in graph_parts(file)), None)


@per_file
def _mentions_graphs(file: PythonFile) -> bool:
    named_so = _GRAPH.search(file.path.stem)
    return bool(named_so or ("raph" in file.text and (_GRAPH.search(file.text) or graph_parts(file))))


@per_file
def graph_parts(file: PythonFile) -> frozenset[Definition]:
    """Return the functions and classes of a file that capture a CUDA graph or are named after one."""
    definitions = (node for kind in _DEFINITIONS for node in file.of_type(kind))
    named_so = (node for node in definitions if _GRAPH.search(node.name))
    captures = [node for name in _CAPTURES for node in file.by_name.get(name, ())]
    made = (node for node in captures if getattr(getattr(file.parent(node), "func", None), "id", "") != "hasattr")
    functions = (file.function(node) for node in made if (file.resolve(node) or "").startswith("torch.cuda."))
    return frozenset([*named_so, *(function for function in functions if isinstance(function, Definition))])
