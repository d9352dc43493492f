"""What only CUDA has: libraries, kernels, the model of a GPU, functions of torch.cuda without a counterpart."""

from __future__ import annotations

import ast
import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from npukit.facts.libraries import for_cuda
from npukit.facts.target import Target
from npukit.facts.torch_npu.names import names_of
from npukit.source import PythonFile
from npukit.source.names import children, definition_of, file_of, inside

_FOR_CUDA = re.compile(
    r"nvidia|nvml|numba|nvtx|nvls|nvlink|nvfp|nvrtc|nvcc|nvshmem|triton|tilelang|causal_conv1d|mamba_ssm|selective_scan|cupy|(?:^|_)apex|flash[_-]?att|flash_?mla|xformers|xops|tensorrt|(?:^|_)trt"
    r"|onnxruntime|^(?:io_binding|bind_(?:in|out)put)$|paddle|cudaexecutionprovider|bitsandbytes|(?:^|_)bnb|8bit|fp8|float8|transformer_?engine|deep_?gemm"
    r"|cutlass|capability|hopper(?!-v\d)|(?<![a-z])ampere|blackwell|managed_(?:tensor|mem)|(?:^|_)sm_?\d\d|cuda_?(?:graph(?!able)|ipc)|^multi_tensor_|cuda_?ext|cuda_?arch|cuda_home|cpp_extension|pyg_lib"
    r"|cuda_?kernels?(?:$|_)|nccl_?(?:alloc|mem)|(?<!use_)symm(?:etric)?_?mem|cudnn_?kernel|cudart|cublas|cuda/lib|\.cuh?$|ctranslate2|faiss|processgroupnccl|^_c$|_ext$|^impl$|(?:^|_)fa[23]$|nvdec|nvenc|(?<![a-z])dali|rocm|isaac(?:gym|lab|sim)|nsight|(?<![a-z])nsys"
    r"|^(?:with|has|have)_cuda_(?!devices?$|gpus?$|tensor|input|param|model|support|available|memory)\w",
    re.IGNORECASE,
)
# Of get_device_properties: torch_npu has these names, and None for each.
ABOUT_THE_CARD = {"major", "minor", "multi_processor_count", "max_threads_per_multi_processor"}
ABOUT_THE_CARD |= {f"shared_memory_per_{each}" for each in ("block", "block_optin", "multiprocessor")}
_CUDNN_SWITCHES = {"allow_tf32", "benchmark", "deterministic"}
ABOUT_THE_CARD |= {"regs_per_multiprocessor", "warp_size", "gcnArchName"}
_CALLED_CUDA = re.compile(r"(?:^|_)cuda(?:_|$)|^cuda|cuda$", re.IGNORECASE)
_GPU = re.compile(r"(?:^|_)(?:gpu|cuda)(?:_|$)", re.IGNORECASE)
_FOR_ANY = re.compile(
    r"(?:^|_)(?:to|move|copy|put|use|has|is|on|init|set|get|empty|clear|reset|sync\w*|with)_?cuda|^cuda$|is_cuda"
    r"|cuda_?(?:rng|seed|manual|mem|device|time|stream|sync|cache|event|avail|visible|empty|tensor|fetch)",
    re.IGNORECASE,
)
_RUN_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
_IMPORTED = (ast.alias, ast.ImportFrom)
_TOP_IMPORT = re.compile(r"\n(?:import|from)[ \t]+([\w.]+)")
_KERNEL_LIBRARIES = for_cuda("kernels")
HAS_OTHERS = re.compile(r"triton|cuda|device|backend|impl|kernel|fused|avail|have|has_|use_|is_", re.IGNORECASE)
_BESIDE = re.compile(r"\nfrom \.(\w+) import (\([^)]*\)|.*)")
_COMPILED = re.compile(r"\n@(?:triton|tilelang)\.(?!testing\b)")
_KERNELS = re.compile(
    r"_cuda$|triton|(?:^|\.)apex|flash_attn|xformers|unsloth|(?:^|[._])kernels$|numba\.cuda|cutlass|tilelang"
)


def says_cuda(node: ast.AST) -> bool:
    """Whether a name, an import or a short string is of something that only CUDA has."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "cuda":  # torch.cuda.NAME
            owner = node.value.value
            return isinstance(owner, ast.Name) and owner.id in ("torch", "th") and _npu_lacks(node.attr)
        version = (
            isinstance(node.value, ast.Attribute) and node.value.attr == "version" and node.attr in ("cuda", "hip")
        )
        asks_cudnn = getattr(node.value, "attr", "") == "cudnn" and isinstance(node.ctx, ast.Load)
        return (
            version
            or node.attr in ABOUT_THE_CARD
            or (asks_cudnn and node.attr in _CUDNN_SWITCHES)
            or _is_for_cuda(node.attr)
        )
    names: list[str] = []
    if isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, (ast.alias, ast.keyword)):
        names = [(node.name if isinstance(node, ast.alias) else node.arg) or ""]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value[:60]:
        names = [node.value[:60]] if not node.value.startswith("NVTE_") else []  # the environment of any test
    return any(map(_is_for_cuda, names))


@lru_cache(maxsize=65536)
def _is_for_cuda(name: str) -> bool:
    return _FOR_CUDA.search(name) is not None


@lru_cache(maxsize=256)
def _npu_lacks(function: str) -> bool:
    return function in ("get_device_capability", "CUDAGraph", "graph") or function not in names_of(
        "npu", Target.of().torch_npu
    )


def leads_to_cuda(node: ast.AST, file: PythonFile) -> bool:
    """Whether a call is of a kernel for CUDA by its name, or of a project's function that asks for a GPU's model."""
    if names_kernel(node, file):
        return True
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _is_kernel_for_gpus(node, file)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        level = "." * getattr(node, "level", 0)
        return any(_brings_kernels(file_of(level + each, file.path, file.names.root)) for each in modules)
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    name = getattr(func, "attr", "") or getattr(func, "id", "")
    if name == "apply" and isinstance(func, ast.Attribute) and _is_kernel_function(func.value, file):
        return True
    named = bool(_CALLED_CUDA.search(name)) and not _FOR_ANY.search(name)
    definition = definition_of(func, file.names, "" if named else "get_device_")
    if definition is not None:
        found = (each for statement in definition.body for each in (always_run if named else _unconditional)(statement))
        return any(says_cuda(each) for each in found)
    owner = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and _CALLED_CUDA.search(owner.id) and not _FOR_ANY.search(owner.id):
        return file.resolve(func) is None or not str(file.resolve(func)).startswith("torch.")
    if file.resolve(func) is not None and str(file.resolve(func)).startswith("torch."):
        return False
    return named


def _is_kernel_function(node: ast.expr, file: PythonFile) -> bool:
    """A torch.autograd.Function of the project whose forward calls a compiled extension: return _C.forward(x)"""
    definition = definition_of(node, file.names, "Function")
    methods = definition.body if isinstance(definition, ast.ClassDef) else ()
    forward = [each for each in methods if isinstance(each, ast.FunctionDef) and each.name == "forward"]
    return any(says_cuda(each) for method in forward for part in method.body for each in always_run(part))


def _is_kernel_for_gpus(node: ast.Name | ast.Attribute, file: PythonFile) -> bool:
    """rnnt.loss_gpu, where the project's file rnnt.py has kernels for CUDA."""
    if not _GPU.search(node.attr if isinstance(node, ast.Attribute) else node.id):
        return False
    module = (file.resolve(node) or "").rpartition(".")[0]
    return bool(module) and _brings_kernels(file_of(module, file.path, file.names.root))


def names_kernel(node: ast.AST, file: PythonFile) -> bool:
    """Whether a name comes from an import that needs CUDA: of kernels of the project, or of an optional library."""
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _names_for_cuda(file)


@lru_cache(maxsize=4)
def _names_for_cuda(file: PythonFile) -> frozenset[str]:
    return frozenset([*_kernel_names(file), *_of_the_engine(file), *_optional_for_cuda(file), *_short_names(file)])


@lru_cache(maxsize=4)
def _kernel_names(file: PythonFile) -> frozenset[str]:
    return frozenset(
        each for each in _always_using(project_kernels(file), file.tree.body) if not each.startswith("test")
    )


def launches_kernels(part: ast.stmt, file: PythonFile) -> bool:
    """Whether a statement calls kernels of the project for CUDA, whatever holds."""
    lines = _lines_of_kernels(file)
    next_one = bisect_left(lines, part.lineno)  # quick: most statements name none
    if next_one == len(lines) or lines[next_one] > (part.end_lineno or part.lineno):
        return False
    names = _kernel_names(file)
    return any(
        (isinstance(node, ast.Name) and node.id in names)
        or (isinstance(node, ast.Call) and getattr(node.func, "id", "").endswith("_cuda") and leads_to_cuda(node, file))
        for node in always_run(part)
    )


@lru_cache(maxsize=4)
def _lines_of_kernels(file: PythonFile) -> tuple[int, ...]:
    names = _kernel_names(file)
    found = (nodes for name, nodes in file.by_name.items() if name in names or name.endswith("_cuda"))
    return tuple(sorted({node.lineno for nodes in found for node in nodes if isinstance(node, ast.Name)}))


@lru_cache(maxsize=4)
def project_kernels(file: PythonFile) -> frozenset[str]:
    """The names that a file imports from files of the project that need Triton or the like, or that launch kernels."""
    return frozenset(_kernels(file))


def _kernels(file: PythonFile) -> Iterator[str]:
    for node in file.names.imports:
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            modules = [file_of(each, file.path, file.names.root) for each in _modules(node, alias)]  # type: ignore[arg-type]
            if any(_needs_kernels(each) for each in modules) or alias.name in _launchers(modules[0]):
                yield alias.asname or alias.name


def _of_the_engine(file: PythonFile) -> Iterator[str]:
    """TELinear, HAVE_TE, of a project's file about Transformer Engine."""
    for node in file.names.imports:
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("transformer_engine"):
            yield from (alias.asname or alias.name for alias in node.names)


@lru_cache(maxsize=1024)
def _launchers(path: Path | None, with_others: bool = True) -> frozenset[str]:
    """The kernels of a file, and of those beside it that it imports, and what always launches them. It may be imported
    without Triton: triton = MagicMock()"""
    text = _text(path)
    others = frozenset(_imported_launchers(path, text)) if path and with_others else frozenset[str]()
    if not others and not _COMPILED.search(text):
        return frozenset()
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return frozenset()
    kernels = _compiled(body)
    is_theirs = path is not None and "triton" in path.parts[-3:]  # triton/ops.py: what does without is elsewhere
    return _always_using(others | kernels, body, always=is_theirs)


def own_launchers(file: PythonFile) -> frozenset[str]:
    """The kernels that a file compiles itself, and its functions and classes that launch them whatever holds."""
    return _always_using(_compiled(file.tree.body), file.tree.body)


def _compiled(body: list[ast.stmt]) -> frozenset[str]:
    functions = (each for each in body if isinstance(each, ast.FunctionDef))
    return frozenset(
        each.name
        for each in functions
        if any(_COMPILED.match(f"\n@{ast.unparse(mark)}") for mark in each.decorator_list)
    )


def _imported_launchers(path: Path, text: str) -> Iterator[str]:
    """from .chunk_h import chunk_forward"""
    for module, names in _BESIDE.findall(text):
        launchers = _launchers(path.with_name(f"{module}.py"), with_others=False)
        yield from (name for name in re.findall(r"\w+", names) if name in launchers)


def _always_using(names: frozenset[str], body: list[ast.stmt], always: bool = False) -> frozenset[str]:
    """These names, and the functions and classes of a file that use one of them whatever holds, or at all."""
    if not names:
        return names
    definitions = [each for each in body if isinstance(each, (ast.FunctionDef, ast.ClassDef))]
    runs = {each.name: set(_names_in(each) if always else _used(each)) for each in definitions}
    while more := {name for name, used in runs.items() if name not in names and not used.isdisjoint(names)}:
        names |= more
    return names


def _used(definition: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    """The names that a function uses, but for what it does by the device or by what is installed; of a class, what its
    `forward` does."""
    stack: list[ast.AST] = list(definition.body)
    if isinstance(definition, ast.ClassDef):
        stack = [part for each in definition.body if getattr(each, "name", "") == "forward" for part in each.body]  # type: ignore[attr-defined]
    while stack:
        now = stack.pop()
        if isinstance(now, ast.Name):
            yield now.id
        elif isinstance(now, (ast.If, ast.IfExp, ast.While)) and HAS_OTHERS.search(ast.unparse(now.test)):
            stack.append(now.test)
        elif not may_lack_it(now) and not isinstance(now, _RUN_LATER):
            stack += children(now)


def _names_in(definition: ast.AST) -> Iterator[str]:
    return (node.id for node in inside(definition) if isinstance(node, ast.Name))


def _modules(node: ast.ImportFrom, alias: ast.alias) -> tuple[str, str]:
    """What `from A import B` may take its name from: A, or A.B."""
    head = "." * node.level + (node.module or "")
    return head, f"{head}.{alias.name}"


def _short_names(file: PythonFile) -> Iterator[str]:
    """import cupy as cp"""
    for node in file.names.imports:
        if isinstance(node, ast.Import):
            yield from (alias.asname for alias in node.names if alias.asname and says_cuda(alias))


def _optional_for_cuda(file: PythonFile) -> Iterator[str]:
    """Names that depend on whether something for CUDA could be imported: try: import apex; HAS_APEX = True"""
    for node in file.tree.body:
        parts = node.body if isinstance(node, ast.Try) else ()
        found = [each for part in parts for each in inside(part)]
        if any(says_cuda(each) for each in found if isinstance(each, _IMPORTED)):
            yield from (each.id for each in found if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))


def _brings_kernels(path: Path | None) -> bool:
    """Whether a file of the project imports kernels for CUDA at its top."""
    return any(_KERNELS.search(name) for name in _top_imports(path))


def _needs_kernels(path: Path | None) -> bool:
    """Whether it cannot be imported without a compiler of kernels, or a library of them."""
    return any(_KERNEL_LIBRARIES.match(name) for name in _top_imports(path))


@lru_cache(maxsize=1024)
def _top_imports(path: Path | None) -> tuple[str, ...]:
    text = _text(path)
    numba = ("numba.cuda",) if "numba.cuda" in text or "from numba import cuda" in text else ()
    return (*numba, *_TOP_IMPORT.findall(text))


@lru_cache(maxsize=2)  # which _top_imports and _launchers read one after the other
def _text(path: Path | None) -> str:
    try:
        return "\n" + path.read_text(encoding="utf-8", errors="replace") if path else ""
    except OSError:
        return ""


@lru_cache(maxsize=4)
def dispatches_kernels(file: PythonFile) -> bool:
    """Whether a file imports kernels for CUDA, so that its functions say whether these can be called."""
    if "load_ext(" in file.text:  # mmcv's
        return True
    heads = [(getattr(node, "module", None), node.names[0].name) for node in file.names.imports]
    modules = [each for head, name in heads for each in ((head, f"{head}.{name}") if head else (name,))]
    return any(
        _KERNELS.search(each) and not each.startswith("apex") and not re.search(r"_to_cuda$", each) for each in modules
    )


@lru_cache(maxsize=4)
def uses_kernels(file: PythonFile) -> bool:
    """The same, or whether a file of the project that it imports does."""
    if dispatches_kernels(file):
        return True
    modules = (
        module
        for node in file.names.imports
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        for module in _modules(node, alias)
    )
    return any(_brings_kernels(file_of(module, file.path, file.names.root)) for module in modules)


def always_run(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, without the branches of further conditions and what may be missing."""
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        if isinstance(now, (ast.If, ast.IfExp, ast.While)) and now is not node:
            stack.append(now.test)
        elif (now is node or not may_lack_it(now)) and not isinstance(now, _RUN_LATER):
            stack += children(now)


def may_lack_it(node: ast.AST) -> bool:
    """Whether what fails in a `try` is let pass, as where something is not installed."""
    handlers = node.handlers if isinstance(node, ast.Try) else ()
    return any(
        each.type is None or re.search(r"ImportError|\bException|NotFound", ast.unparse(each.type)) for each in handlers
    )


def _unconditional(statement: ast.stmt) -> Iterator[ast.AST]:
    """Only calls that ask for a GPU's model, of what a function always does."""
    if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)):
        for node in always_run(statement):
            if isinstance(node, ast.Attribute) and node.attr in ("get_device_capability", *ABOUT_THE_CARD):
                yield node
