"""Code of a project that is CUDA's as a whole: its layer for the device, patches of torch.cuda, kernels of numba."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from npukit.facts.target import Target
from npukit.facts.versions import key
from npukit.migrate.requirements import pinned_torch
from npukit.source import PythonFile

_DEVICE_API = {"is_available", "set_device", "current_device", "device_count", "synchronize", "empty_cache", "Stream"}
_CANNOT_IMPORT = re.compile(r"(?:tensorrt|torch2trt|pycuda|cupy)(?:\.|$)")
_FOR_TESTS_OF_CUDA = re.compile(r"(?:numba|triton|cupy|flash_attn|xformers|apex|tensorrt|bitsandbytes)(?:\.|$)")
_VERSION = re.compile(r"[\"'](\d+\.\d+)")
_HAS_OWN_DEVICES = re.compile(r"ctranslate2(?:\.|$)")
_REPLACED = re.compile(r"^[ \t]*torch\.cuda(?:\.\w+)* = ", re.MULTILINE)
_TOUCHED = re.compile(r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b|torch\.cuda\.\w+ = ")
_MOCKED = re.compile(
    r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b|^[ \t]*torch\.cuda\.\w+ = ", re.MULTILINE
)


def is_layer_for_cuda(node: ast.AST) -> bool:
    """class CudaAccelerator, beside which a project has, or gets, one for NPUs."""
    if not isinstance(node, ast.ClassDef) or not re.search(r"cuda|nvidia", node.name, re.IGNORECASE):
        return False
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return "is_available" in methods or len(methods & _DEVICE_API) > 2


def replaces_cuda(node: ast.AST, file: PythonFile) -> bool:
    """Whether the code around puts something else in the place of torch.cuda: torch.cuda.synchronize = ours, or a
    test with patch("torch.cuda.is_available"). A file that does so several times is left alone as a whole."""
    times = _replacements(file)
    if times is None or times > 2:
        return times is not None
    around = file.function(node)
    return around is not file.tree and bool(_MOCKED.search(_with_decorators(around, file)))


@lru_cache(maxsize=4)
def _replacements(file: PythonFile) -> int | None:
    """How often the file assigns to torch.cuda; None where it does not touch it at all."""
    text = file.text
    may_touch = "torch.cuda" in text and _TOUCHED.search(text)  # quick: most files do not
    return len(_REPLACED.findall(text)) if may_touch and _MOCKED.search(text) else None


def _with_decorators(function: ast.AST, file: PythonFile) -> str:
    decorators = getattr(function, "decorator_list", ())
    return "\n".join(file.source(each) for each in (*decorators, function))


def below_imports(file: PythonFile) -> Iterator[ast.AST]:
    """What follows an import that no NPU machine can do, in the same block; at the top of a file it may be optional.

    Below an import in a function, so does what a library with devices of its own gets."""
    for statement in file.names.imports:
        modules = [getattr(statement, "module", None) or "", *(alias.name for alias in statement.names)]
        at_top = file.function(statement) is file.tree
        around = file.parent(statement)
        fails = any(_CANNOT_IMPORT.match(module) for module in modules)
        differs = not at_top and any(_HAS_OWN_DEVICES.match(module) for module in modules)
        if differs or (fails and not (at_top and isinstance(around, ast.Try))):
            yield from after(around if isinstance(around, ast.Try) else statement, file)
    for name in file.by_name.get("importorskip", ()):  # pytest.importorskip("numba")
        call = file.parent(name)
        module = call.args[0] if isinstance(call, ast.Call) and call.args else None
        if isinstance(module, ast.Constant) and _FOR_TESTS_OF_CUDA.match(str(module.value)):
            yield from after(file.statement(name), file)


def with_numba(file: PythonFile) -> Iterator[ast.AST]:
    """The functions that launch kernels of numba, on streams of CUDA."""
    for node in file.nodes if "numba" in file.text else ():
        if isinstance(node, ast.Attribute) and (file.resolve(node) or "").startswith("numba.cuda."):
            function = file.function(node)
            yield function if function is not file.tree else node


def for_older_torch(file: PythonFile) -> Iterator[ast.AST]:
    """What runs only with a torch from before the project's: if version.parse(torch.__version__) < "2.4": ..."""
    for node in file.by_type.get(ast.If, ()) if "torch.__version__" in file.text else ():
        test = node.test  # type: ignore[attr-defined]
        if not isinstance(test, ast.Compare) or "torch.__version__" not in file.source(test.left):
            continue
        version = _VERSION.search(file.source(test.comparators[0]))
        if version and key(version[1]) <= key(_torch_of(file.names.root)):
            if isinstance(test.ops[0], (ast.Lt, ast.LtE)):
                yield from node.body  # type: ignore[attr-defined]
            elif isinstance(test.ops[0], (ast.Gt, ast.GtE)):
                yield from node.orelse  # type: ignore[attr-defined]


@lru_cache(maxsize=8)
def _torch_of(root: Path | None) -> str:
    return (pinned_torch(root) if root else "") or Target.of().torch


def after(statement: ast.stmt, file: PythonFile) -> list[ast.AST]:
    """The statements of the same block that follow."""
    parent = file.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return list(block[block.index(statement) + 1 :])
    return []
