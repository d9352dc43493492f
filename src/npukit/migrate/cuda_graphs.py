"""Code around CUDA graphs, which the portable style leaves as a whole: a graph has another name on an NPU (NPUGraph),
and streams, events and tensors that are captured must be on the same device as the graph.

stays:  class CUDAGraphRunner: ...      a file cuda_graphs.py      def replay_cuda_graph(self): ...
        def warm_up(step): s = torch.cuda.Stream(); g = torch.cuda.CUDAGraph(); ...
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache

from npukit.source import PythonFile

_NAMED = re.compile(r"cuda_?graph(?!able)(?!s?_?(?:enabled|scope|impl|config|mode|flag))", re.IGNORECASE)
_MODE = re.compile(r"Scope|Config|Mode|Impl|Exception|Error")
_CAPTURES = ("CUDAGraph", "make_graphed_callables", "graph_pool_handle")
_Part = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def graph_around(node: ast.AST, file: PythonFile) -> ast.AST | None:
    """The outermost function, class or file around a node that captures or replays CUDA graphs; None where none does.

    >>> graph_around(stream, file)  # class CUDAGraphRunner: def capture(self): s = torch.cuda.Stream()
    <ast.ClassDef object>
    """
    if not _mentions_graphs(file):
        return None
    if _NAMED.search(file.path.stem):
        return file.tree
    around = [each for each in (node, *file.ancestors(node)) if isinstance(each, _Part)]
    return next((each for each in reversed(around) if _is_about_graphs(each, file)), None)


@lru_cache(maxsize=8)
def _mentions_graphs(file: PythonFile) -> bool:
    if _NAMED.search(file.path.stem) or any(each in file.text for each in _CAPTURES):
        return True
    may_name = any(word in file.text for word in ("graph", "Graph", "GRAPH"))  # quick: most files do not
    return may_name and _NAMED.search(file.text) is not None


@lru_cache(maxsize=64)
def _is_about_graphs(part: _Part, file: PythonFile) -> bool:
    if _NAMED.search(part.name):
        return True
    if isinstance(part, ast.ClassDef):
        return False
    captures = (node for name in _CAPTURES for node in file.by_name.get(name, ()))
    found = (*captures, *(_runners(file) if "capture" in part.name else ()))
    return any(
        part in file.ancestors(node)
        for node in found
        if ((file.resolve(node) or "").startswith("torch.cuda.") or _NAMED.search(getattr(node, "id", "")))
        and not _is_asked(node, file)
    )


def _is_asked(node: ast.AST, file: PythonFile) -> bool:
    """hasattr(torch.cuda.CUDAGraph, "register_generator_state")"""
    call = file.parent(node)
    return isinstance(call, ast.Call) and getattr(call.func, "id", "") == "hasattr"


def graph_parts(file: PythonFile) -> Iterator[ast.AST]:
    """The outermost functions and classes of a file that capture or replay CUDA graphs."""
    for part in file.tree.body if _mentions_graphs(file) else ():
        inner = part.body if isinstance(part, ast.ClassDef) else []
        yield from (each for each in (part, *inner) if isinstance(each, _Part) and graph_around(each, file) is each)


@lru_cache(maxsize=4)
def _runners(file: PythonFile) -> tuple[ast.Name, ...]:
    """What a function makes to capture with: runner = CUDAGraphRunner(model)"""
    named = (name for name in file.by_name if name[:1].isupper() and _NAMED.search(name) and not _MODE.search(name))
    return tuple(
        node
        for name in named
        for node in file.by_name[name]
        if isinstance(node, ast.Name) and getattr(file.parent(node), "func", None) is node
    )
