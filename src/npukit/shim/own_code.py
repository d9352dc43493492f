"""Compiles the user's own modules so that devices answer to CUDA's name. Files and libraries are not changed.

`torch.device` cannot be patched, and libraries must go on to see what is there. So the code beside the script is
compiled with two small changes:

    x.device.type == "cuda"         ->  both_names(x.device.type) == "cuda"
    x.device == torch.device("cuda")  ->  on_npu(x.device) == on_npu(torch.device("cuda"))
"""

from __future__ import annotations

import ast
import builtins
import os
import sys
import types
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader
from typing import Any

BOTH_NAMES = "__npukit_both_names__"
ON_NPU = "__npukit_on_npu__"


class _Rewriter(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        return _call(BOTH_NAMES, node) if node.attr == "type" and isinstance(node.ctx, ast.Load) else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        # x.type(...) is a method of a tensor, not a device type.
        if isinstance(node.func, ast.Attribute) and node.func.attr == "type":
            node.func.value = self.visit(node.func.value)
            node.args = [self.visit(argument) for argument in node.args]
            node.keywords = [self.visit(keyword) for keyword in node.keywords]
            return node
        self.generic_visit(node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        sides = [node.left, *node.comparators]
        if any(isinstance(side, ast.Attribute) and side.attr == "device" for side in sides):
            node.left, *node.comparators = [_call(ON_NPU, side) for side in sides]
        return node


def _call(name: str, argument: ast.expr) -> ast.expr:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[argument], keywords=[])
    return ast.fix_missing_locations(ast.copy_location(call, argument))


def compile_own(source: bytes, path: str) -> types.CodeType:
    """Compile a module of the user's."""
    return compile(_Rewriter().visit(ast.parse(source, path)), path, "exec", dont_inherit=True)


class _OwnLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> types.CodeType:
        # Without Python's cache, in which a later run without --auto would find this code.
        path = self.get_filename(fullname)
        return compile_own(self.get_data(path), path)


def install(folder: str, both_names: Callable[[Any], Any], on_npu: Callable[[Any], Any]) -> None:
    """Compile modules below `folder` in this way when they are imported, except for installed packages."""
    setattr(builtins, BOTH_NAMES, both_names)
    setattr(builtins, ON_NPU, on_npu)
    root = os.path.realpath(folder)

    def hook(path: str) -> FileFinder:
        real = os.path.realpath(path)
        if not (real + os.sep).startswith(root.rstrip(os.sep) + os.sep) or "site-packages" in real:
            raise ImportError
        if (real + os.sep).startswith(os.path.realpath(sys.prefix) + os.sep):
            raise ImportError
        return FileFinder(path, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_OwnLoader, SOURCE_SUFFIXES))

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
