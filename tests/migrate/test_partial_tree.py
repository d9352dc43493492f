"""The changed part of a file has what changed, and everything else at its place and as long as it was."""

import ast
from pathlib import Path

from npukit.migrate.partial_tree import changed_part
from npukit.source import Document

BEFORE = """import os

@cached
def same(x):
    return x.same

class Model:
    def other(self):
        def inner():
            return 1
        return inner

    async def moved(self, x):
        return x.cuda()

def loads():
    import torch
"""
AFTER = "import torch\n" + BEFORE.replace("x.cuda()", "x.to(DEVICE)")


def _part() -> list[ast.AST]:
    before, after = (Document(Path("a.py"), "python", text) for text in (BEFORE, AFTER))
    file = changed_part(before, after)
    assert file is not None
    whole = after.python
    assert whole is not None
    for node in file.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Call)):
            assert any(file.span(node) == whole.span(each) for each in whole.by_type[type(node)])
    return file.nodes


def test_what_changed_and_what_imports_is_there() -> None:
    assert {node.attr for node in _part() if isinstance(node, ast.Attribute)} == {"to"}
    assert len([node for node in _part() if isinstance(node, ast.Import)]) == 3


def test_definitions_keep_their_names() -> None:
    names = [node.name for node in _part() if hasattr(node, "name") and not isinstance(node, ast.alias)]
    assert names == ["same", "Model", "other", "moved", "loads"]
