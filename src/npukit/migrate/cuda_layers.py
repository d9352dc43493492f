"""Code of a project that is CUDA's as a whole: its layer for the device, patches of torch.cuda, kernels of numba."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from npukit.facts.libraries import for_cuda
from npukit.facts.target import Target
from npukit.facts.versions import key
from npukit.migrate.cuda_imports import mocked_library, needed_to_import
from npukit.migrate.cuda_tests import is_skipped_whole
from npukit.migrate.requirements import allowed_torch
from npukit.source import PythonFile

_DEVICE_API = {"is_available", "set_device", "current_device", "device_count", "synchronize", "empty_cache", "Stream"}
_CANNOT_IMPORT = for_cuda("fails")
_SIMULATORS = for_cuda("simulators")
_ONLY_FOR_CUDA = for_cuda("optional")
_FILES = re.compile(
    r"nccl_?alloc|nvshmem|cudnn|tilelang|cutlass|tensorrt|(?:^|[/_])trt|cuda_?ipc|(?:^|/)(?:bnb|bitsandbytes)(?:/|$)"
    r"|kernels?/(?:triton|cuda)(?:/|$)|symm(?:etric)?_mem|(?:^|/)test_\w*(?:triton|fp8|fp4)",
    re.IGNORECASE,
)
_TESTED = {
    "cuda": re.compile(r"nvml|nvidia-smi|CUDAExecutionProvider|tensorrt", re.IGNORECASE),
    "te": re.compile("transformer_engine"),
}
_OPTIONAL = re.compile(
    r"_?(?:has|have|use)_(?:nvml|triton|tensorrt|bitsandbytes|deep_?gemm|gptq_cuda|te|transformer_engine)"
    r"|(?:use_)?nccl_ub|uvm_\w*pool|unified_memory_\w*pool|\w*sharp_enabled\w*|cuda_graph_impl|is_jetson",
    re.IGNORECASE,
)
_CARDS = re.compile(r"(?:^|_)(?:cuda|gpus?|nvidia)(?:_|$)")
_ASKS_DRIVER = re.compile(r"nvidia-smi|\bnvml[A-Z]")
_SENSORS = ("temperature", "power_draw", "clock_rate")
_ASKS_TORCH = re.compile(r"torch\.__version__|\bis_torch_(?:min_version|version_(?:at_least|ge))\b")
_VERSION = re.compile(r"[\"'](\d+\.\d+)")
_HAS_OWN_DEVICES = for_cuda("own_device")
_REPLACED = re.compile(r"^[ \t]*torch\.cuda(?:\.\w+)* = ", re.MULTILINE)
_MOCKS = re.compile(r"\b(?:Magic)?Mock\(|\bpatch(?:\.object)?\(|\bmonkeypatch\b|\bmock_\w")
_GIVEN = re.compile(r"""["'](?:cuda|nccl)["':]""")
_ASSERTED = re.compile(r"\bassert\b.*==\s*$|assertEqual\(|assert_\w*called\w*\(")  # before it, on its line
_LONGEST_ASSERT = 400
_PATCHED = re.compile(r"(?:patch|setattr)(?:\.object)?\(\s*[\"']?[\w.]*torch\.cuda\b")
_MOCKED = re.compile(rf"{_PATCHED.pattern}|^[ \t]*torch\.cuda\.\w+ = ", re.MULTILINE)


@lru_cache(maxsize=8)
def why_for_cuda(file: PythonFile) -> str:
    """Why a file as a whole is for CUDA only, or "": its name or folder says so (nccl_allocator.py,
    nvshmem_copy_service/planner.py), it cannot be imported on an NPU machine, is a script to be run under CUDA's
    profiler, or its tests all need a library."""
    root, path = file.names.root, file.path
    inside = path.relative_to(root) if root and path.is_relative_to(root) else Path(path.name)
    if _FILES.search("/".join(inside.with_suffix("").parts)) or _is_test_of_cuda(file):
        return "Its name says so."
    if needed := needed_to_import(file):
        return f"It cannot be imported without {needed}."
    if mocked := mocked_library(file):
        return f"Without {mocked} it has only mocks of it."
    if _always_starts_profiler(file):
        return "It starts CUDA's profiler."
    return "All its tests need a library for CUDA." if is_skipped_whole(file) else ""


def is_file_for_cuda(file: PythonFile) -> bool:
    """Whether a file as a whole is for CUDA only."""
    return bool(why_for_cuda(file))


def _always_starts_profiler(file: PythonFile) -> bool:
    """def main(): torch.cuda.cudart().cudaProfilerStart(), whatever the options are"""
    starts = file.by_name.get("cudaProfilerStart", ()) if "__main__" in file.text else ()
    return any(isinstance(file.parent(file.statement(each)), ast.FunctionDef) for each in starts)


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
    places = (file.parent(each) for each in file.by_name.get("cuda", ()))
    sets = any(isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) for each in places)
    may_touch = sets or _PATCHED.search(text)  # quick: most files do not
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
    """Found quickly, of what may have mocks; which function does both is asked then."""
    return any(word in file.text for word in ("Mock(", "mock_", "patch")) and _asserts(file.text)


def _asserts(text: str) -> bool:
    devices = (each.start() for each in _GIVEN.finditer(text))
    before = ((max(text.rfind("\n", 0, at) + 1, at - _LONGEST_ASSERT), at) for at in devices)
    return any(_ASSERTED.search(text, start, end) for start, end in before)


@lru_cache(maxsize=64)
def _asserts_on_mocks(function: ast.AST, file: PythonFile) -> bool:
    text = _with_decorators(function, file)
    return _MOCKS.search(text) is not None and _asserts(text)


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


def read_by_its_class(condition: ast.expr, file: PythonFile) -> list[ast.AST]:
    """The class that turns itself on where the condition holds, if a method of it reads what only CUDA's cards say."""
    nodes = [node for name in _SENSORS for node in file.by_name.get(name, ())]
    owner = (
        next((each for each in file.ancestors(condition) if isinstance(each, ast.ClassDef)), None) if nodes else None
    )
    read = (file.resolve(node) or "" for node in nodes if owner and owner in file.ancestors(node))
    return [owner] if owner and any(name.startswith("torch.cuda.") for name in read) else []


def with_nvidia_smi(file: PythonFile) -> Iterator[ast.AST]:
    """The functions about CUDA's cards that ask nvidia-smi or NVML: what they do beside it is for the same cards."""
    for node in file.tree.body if "nvidia-smi" in file.text or "nvml" in file.text else ():
        about_cards = isinstance(node, ast.FunctionDef) and _CARDS.search(node.name)
        if about_cards and _ASKS_DRIVER.search(file.source(node)):
            yield node


def with_optional(file: PythonFile) -> Iterator[ast.AST]:
    """What runs with an option or optional library for CUDA: if has_nvml: ..., if self.nccl_ub and size > 1: ..., and
    what follows `if not has_nvml: return` or `assert self.nccl_ub`."""
    if not any(map(_OPTIONAL.fullmatch, file.by_name)):
        return
    for node in (*file.by_type.get(ast.If, ()), *file.by_type.get(ast.Assert, ())):
        test = node.test  # type: ignore[attr-defined]
        is_negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        if not any(map(_is_optional, _parts(test.operand if is_negated else test))):
            continue
        if isinstance(node, ast.Assert):
            yield from after(node, file) if not is_negated else ()
        elif not is_negated:
            yield from node.body  # type: ignore[attr-defined]
        elif isinstance(node.body[-1], (ast.Return, ast.Raise)):  # type: ignore[attr-defined]
            yield from after(node, file)  # type: ignore[arg-type]


def _parts(test: ast.expr) -> list[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _is_optional(test: ast.expr) -> bool:
    """has_nvml, self.nccl_ub, uvm_pool is not None, args.cuda_graph_impl == "transformer_engine" """
    if isinstance(test, ast.Compare):
        against = getattr(test.comparators[0], "value", "")
        is_set = against not in (None, "none") if isinstance(test.ops[0], ast.Eq) else against in (None, "none")
        test = test.left if is_set and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.IsNot)) else test
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return bool(_OPTIONAL.fullmatch(name))


def served(file: PythonFile) -> Iterator[ast.AST]:
    """What a handler of TorchServe does with its worker's gpu_id, which is None where there are NPUs."""
    is_handler = "gpu_id" in file.text and any(name.startswith("ts.torch_handler") for name in file.imported)
    for node in file.nodes if is_handler else ():
        if isinstance(node, ast.Constant) and node.value == "gpu_id":
            yield file.function(node) if file.function(node) is not file.tree else node


def for_older_torch(file: PythonFile) -> Iterator[ast.AST]:
    """What runs only with a torch from before the project's: if version.parse(torch.__version__) < "2.4": ..., and
    what is not behind is_torch_min_version("2.4")"""
    for node in file.by_type.get(ast.If, ()) if "torch.__version__" in file.text or "is_torch_" in file.text else ():
        test, body, orelse = node.test, node.body, node.orelse  # type: ignore[attr-defined]
        if isinstance(test, ast.Compare) and "torch.__version__" in file.source(test.left):
            version, is_newer = file.source(test.comparators[0]), isinstance(test.ops[0], (ast.Gt, ast.GtE))
            is_older = isinstance(test.ops[0], (ast.Lt, ast.LtE))
        elif isinstance(test, ast.Call) and _ASKS_TORCH.search(file.source(test.func)):
            version, is_newer, is_older = file.source(test), True, False
        else:
            continue
        found = _VERSION.search(version)
        if found and key(found[1]) <= key(_torch_of(file.names.root)):
            yield from body if is_older else orelse if is_newer else ()


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
