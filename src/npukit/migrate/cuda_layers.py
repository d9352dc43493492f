"""Code of a project that is CUDA's as a whole: its layer for the device, patches of torch.cuda, kernels of numba."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from npukit.facts.target import Target
from npukit.facts.versions import key
from npukit.migrate.cuda_imports import needed_to_import
from npukit.migrate.cuda_tests import is_skipped_whole
from npukit.migrate.requirements import allowed_torch
from npukit.source import PythonFile

_DEVICE_API = {"is_available", "set_device", "current_device", "device_count", "synchronize", "empty_cache", "Stream"}
_CANNOT_IMPORT = re.compile(r"(?:tensorrt|torch2trt|pycuda|cupy|isaac\w*)(?:\.|$)")
_SIMULATORS = re.compile(r"isaac\w*(?:\.|$)")
_ONLY_FOR_CUDA = re.compile(r"(?:numba|triton|cupy|flash_attn|xformers|apex|tensorrt|bitsandbytes)(?:\.|$)")
_FILES = re.compile(
    r"nccl_?alloc|nvshmem|cudnn|tilelang|cutlass|tensorrt|(?:^|[/_])trt|cuda_?ipc|(?:^|/)(?:bnb|bitsandbytes)(?:/|$)"
    r"|kernels?/(?:triton|cuda)(?:/|$)|symm(?:etric)?_mem|(?:^|/)test_\w*(?:triton|fp8|fp4)",
    re.IGNORECASE,
)
_TESTED = {
    "cuda": re.compile(r"nvml|nvidia-smi|CUDAExecutionProvider|tensorrt", re.IGNORECASE),
    "te": re.compile("transformer_engine"),
}
_OPTIONAL = re.compile(r"_?(?:has|have|use)_(?:nvml|triton|tensorrt|bitsandbytes|deep_?gemm)", re.IGNORECASE)
_VERSION = re.compile(r"[\"'](\d+\.\d+)")
_HAS_OWN_DEVICES = re.compile(r"ctranslate2(?:\.|$)")
_REPLACED = re.compile(r"^[ \t]*torch\.cuda(?:\.\w+)* = ", re.MULTILINE)
_TOUCHED = re.compile(r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b|torch\.cuda\.\w+ = ")
_MOCKS = re.compile(r"\b(?:Magic)?Mock\(|\bpatch(?:\.object)?\(|\bmonkeypatch\b|\bmock_\w")
_ASSERTED = re.compile(r"""(?:\bassert\b.*==\s*|assertEqual\(.*|assert_\w*called\w*\(.*)["'](?:cuda|nccl)["':]""")
_MOCKED = re.compile(
    r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b|^[ \t]*torch\.cuda\.\w+ = ", re.MULTILINE
)


@lru_cache(maxsize=8)
def why_for_cuda(file: PythonFile) -> str:
    """Why a file as a whole is for CUDA only, or "": its name or folder says so (nccl_allocator.py,
    nvshmem_copy_service/planner.py), it cannot be imported on an NPU machine, or its tests all need a library."""
    root, path = file.names.root, file.path
    inside = path.relative_to(root) if root and path.is_relative_to(root) else Path(path.name)
    if _FILES.search("/".join(inside.with_suffix("").parts)) or _is_test_of_cuda(file):
        return "Its name says so."
    if needed := needed_to_import(file):
        return f"It cannot be imported without {needed}."
    return "All its tests need a library for CUDA." if is_skipped_whole(file) else ""


def is_file_for_cuda(file: PythonFile) -> bool:
    """Whether a file as a whole is for CUDA only."""
    return bool(why_for_cuda(file))


def _is_test_of_cuda(file: PythonFile) -> bool:
    """test_cuda.py, where it tests NVIDIA's own software; test_te_layers.py, of Transformer Engine"""
    first, *words = file.path.stem.split("_")
    software = _TESTED.get(words[0]) if first == "test" and words else None
    return software is not None and software.search(file.text) is not None


def is_layer_for_cuda(node: ast.AST) -> bool:
    """class CudaAccelerator, beside which a project has, or gets, one for NPUs; class TritonExtension"""
    if not isinstance(node, ast.ClassDef) or not re.search(r"cuda|nvidia|triton", node.name, re.IGNORECASE):
        return False
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return (
        any(re.fullmatch(r"is_(?:\w+_)?(?:available|compatible|supported)", name) for name in methods)
        or len(methods & _DEVICE_API) > 2
    )


def is_method_for_cuda(node: ast.AST, file: PythonFile) -> bool:
    """def cuda(self): of a class that has an npu() as well, of a kind of tensor, or where super() moves to CUDA;
    or what every class of a project's own layer for devices defines anew"""
    owner = file.parent(node) if isinstance(node, ast.FunctionDef) else None
    if not isinstance(node, ast.FunctionDef) or not isinstance(owner, ast.ClassDef):
        return False
    if node.name != "cuda":
        is_abstract = any(file.source(each).endswith("abstractmethod") for each in node.decorator_list)
        return is_abstract and bool(re.search(r"Accelerator|Device|Platform", owner.name))
    has_npu = any(isinstance(each, ast.FunctionDef) and each.name == "npu" for each in owner.body)
    is_tensor = any(file.source(base).endswith("Tensor") for base in owner.bases)
    return has_npu or is_tensor or "super().cuda(" in file.source(node)


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


def told_to_mocks(node: ast.AST, file: PythonFile) -> bool:
    """Whether a test with mocks asserts on a device or backend that it gave, and so runs on any machine:
    create(backend="nccl"); assert kwargs["backend"] == "nccl" """
    around = file.function(node) if _asserts_somewhere(file) else file.tree
    return around is not file.tree and _asserts_on_mocks(around, file)


@lru_cache(maxsize=4)
def _asserts_somewhere(file: PythonFile) -> bool:
    return "assert" in file.text and bool(_MOCKS.search(file.text) and _ASSERTED.search(file.text))


@lru_cache(maxsize=64)
def _asserts_on_mocks(function: ast.AST, file: PythonFile) -> bool:
    text = _with_decorators(function, file)
    return bool(_MOCKS.search(text) and _ASSERTED.search(text))


def below_imports(file: PythonFile) -> Iterator[ast.AST]:
    """What follows an import that no NPU machine can do, in the same block; at the top of a file it may be optional.

    Below an import in a function, so does what a library with devices of its own gets; of an optional import, what is
    defined below it."""
    for statement in file.names.imports:
        modules = [getattr(statement, "module", None) or "", *(alias.name for alias in statement.names)]
        at_top = file.function(statement) is file.tree
        around = file.parent(statement)
        fails = any(_CANNOT_IMPORT.match(module) for module in modules)
        differs = not at_top and any(_HAS_OWN_DEVICES.match(module) for module in modules)
        simulates = not at_top and any(_SIMULATORS.match(module) for module in modules)
        if simulates:  # on a device that it is given elsewhere in its class
            yield next((each for each in file.ancestors(statement) if isinstance(each, ast.ClassDef)), statement)
        if differs or (fails and not (at_top and isinstance(around, ast.Try))):
            yield from after(around if isinstance(around, ast.Try) else statement, file)
        elif isinstance(around, ast.Try) and any(_ONLY_FOR_CUDA.match(module) for module in modules):
            yield from (each for each in after(statement, file) if isinstance(each, (ast.ClassDef, ast.FunctionDef)))
    for name in file.by_name.get("importorskip", ()):  # pytest.importorskip("numba")
        call = file.parent(name)
        module = call.args[0] if isinstance(call, ast.Call) and call.args else None
        if isinstance(module, ast.Constant) and _ONLY_FOR_CUDA.match(str(module.value)):
            yield from after(file.statement(name), file)


def under_its_name(file: PythonFile) -> Iterator[ast.AST]:
    """{"cpu": lambda: True, "cuda": lambda: torch.cuda.is_available()}: whoever asks for CUDA is told of CUDA"""
    for node in file.by_type.get(ast.Dict, ()) if "is_available" in file.text else ():
        for name, value in zip(node.keys, node.values, strict=True):  # type: ignore[attr-defined]
            if isinstance(name, ast.Constant) and name.value == "cuda" and "is_available" in file.source(value):
                yield value


def with_numba(file: PythonFile) -> Iterator[ast.AST]:
    """The functions that launch kernels of numba, on streams of CUDA."""
    for node in file.nodes if "numba" in file.text else ():
        if isinstance(node, ast.Attribute) and (file.resolve(node) or "").startswith("numba.cuda."):
            function = file.function(node)
            yield function if function is not file.tree else node


def counted_by_mmcv(file: PythonFile) -> Iterator[ast.AST]:
    """The classes that log what mmcv's own _get_max_memory says, which asks torch.cuda."""
    for node in file.tree.body if "_get_max_memory(" in file.text and "mmcv" in file.text else ():
        if isinstance(node, ast.ClassDef) and "._get_max_memory(" in file.source(node):
            yield node


def with_optional(file: PythonFile) -> Iterator[ast.AST]:
    """What runs with an optional library for CUDA: if has_nvml: ..., and what follows `if not has_nvml: return`."""
    for node in file.by_type.get(ast.If, ()) if _OPTIONAL.search(file.text) else ():
        test = node.test  # type: ignore[attr-defined]
        if (
            isinstance(test, ast.UnaryOp)
            and isinstance(test.op, ast.Not)
            and _OPTIONAL.fullmatch(file.source(test.operand))
        ):
            leaves = isinstance(node.body[-1], (ast.Return, ast.Raise))  # type: ignore[attr-defined]
            yield from after(node, file) if leaves else ()  # type: ignore[arg-type]
        elif _OPTIONAL.fullmatch(file.source(test)):
            yield from node.body  # type: ignore[attr-defined]


def served(file: PythonFile) -> Iterator[ast.AST]:
    """What a handler of TorchServe does with its worker's gpu_id, which is None where there are NPUs."""
    is_handler = "gpu_id" in file.text and any(name.startswith("ts.torch_handler") for name in file.imported)
    for node in file.nodes if is_handler else ():
        if isinstance(node, ast.Constant) and node.value == "gpu_id":
            yield file.function(node) if file.function(node) is not file.tree else node


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
    return (allowed_torch(root)[1] if root else "") or Target.of().torch


def required(statement: ast.stmt, file: PythonFile) -> list[ast.AST]:
    """What must hold to come so far in a block: load_8bit, where `if not load_8bit: return` stands above."""
    parent = file.parent(statement)
    block = getattr(parent, "body", None)
    above = block[: block.index(statement)] if isinstance(block, list) and statement in block else []
    return [
        each.test.operand
        for each in above
        if isinstance(each, ast.If)
        and isinstance(each.test, ast.UnaryOp)
        and isinstance(each.test.op, ast.Not)
        and isinstance(each.body[-1], (ast.Return, ast.Raise))
    ]


def after(statement: ast.stmt, file: PythonFile) -> list[ast.AST]:
    """The statements of the same block that follow."""
    parent = file.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return list(block[block.index(statement) + 1 :])
    return []
