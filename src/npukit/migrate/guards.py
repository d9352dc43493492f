"""What a condition about CUDA decides. If that is for CUDA alone, the condition and the code behind it stay.

stays:    if torch.cuda.is_available(): major, _ = torch.cuda.get_device_capability()
          HAS_TRITON = torch.cuda.is_available() and find_spec("triton")
          providers = ["CUDAExecutionProvider"] if cuda else []     # cuda = torch.cuda.is_available()
becomes:  if torch.cuda.is_available(): model.cuda()

A condition decides what is below it, behind an `and`, or after it where it leaves the function or is asserted; a
variable or a function that holds it decides what its users do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from npukit.facts.target import Target
from npukit.facts.torch_npu.names import names_of
from npukit.source import PythonFile
from npukit.source.names import definition_of

_FOR_CUDA = re.compile(
    r"nvidia|nvml|nvtx|nvls|nvfp|nvrtc|nvcc|triton|cupy|(?:^|_)apex|flash_?att|xformers|xops|tensorrt|(?:^|_)trt"
    r"|onnxruntime|paddle|cudaexecutionprovider|bitsandbytes|(?:^|_)bnb|8bit|fp8|float8|transformer_engine|deep_?gemm"
    r"|cutlass|capability|hopper|ampere|blackwell|(?:^|_)sm_?\d\d|cuda_?graph|cuda_?ext|cuda_home|cpp_extension"
    r"|cudart|cublas|processgroupnccl|^_c$|_ext$|^impl$|(?:^|_)fa[23]$|nvdec|nvenc|dali",
    re.IGNORECASE,
)
_ABOUT_THE_CARD = {"major", "minor"}  # of get_device_properties
_OTHERS = re.compile(r"[\"'](?:xpu|hpu|musa|mlu|tpu|xla|rocm|hip)[\"':]")
_CALLED_CUDA = re.compile(r"(?:^|_)cuda(?:_|$)|^cuda|cuda$", re.IGNORECASE)
_FOR_ANY = re.compile(
    r"(?:^|_)(?:to|move|copy|put|use|has|is|on|init|set|get|empty|clear|reset|sync\w*|with)_?cuda|^cuda$|is_cuda"
    r"|cuda_?(?:rng|seed|mem|device|time|stream|sync|cache|event|avail|visible|empty|tensor|fetch)",
    re.IGNORECASE,
)
_DEVICE_API = {"is_available", "set_device", "current_device", "device_count", "synchronize", "empty_cache", "Stream"}
_CANNOT_IMPORT = re.compile(r"(?:tensorrt|pycuda|cupy|pynvml|nvidia)(?:\.|$)")
_PACKAGE = re.compile(r"[-_]?(?:gpu|cuda|cu)?[\d.]*")  # the end of a package's name: "onnxruntime" + "-gpu"
_LEAVE = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_SEVERAL = "It chooses among several backends, and NPUs are not one of them."
_CUDA_ONLY = "What it decides is for CUDA only."


def why_left(condition: ast.expr, file: PythonFile) -> str:
    """Why a condition about CUDA is not ours to change; empty when it is."""
    if _OTHERS.search(file.source(_chain(condition, file))):
        return _SEVERAL
    return _CUDA_ONLY if condition in _judged(file) else ""


def for_cuda_only(node: ast.AST, file: PythonFile) -> bool:
    """Whether a node runs only where a condition that stays holds, or belongs to the project's own layer for CUDA."""
    decided = _decided_nodes(file)
    return any(each in decided or _is_layer_for_cuda(each) for each in (node, *file.ancestors(node)))


def _below_imports(file: PythonFile) -> Iterator[ast.AST]:
    """What follows an import that no NPU machine can do, in the same block of a function."""
    for statement in file.names.imports:
        modules = [getattr(statement, "module", None) or "", *(alias.name for alias in statement.names)]
        if any(_CANNOT_IMPORT.match(module) for module in modules) and file.function(statement) is not file.tree:
            around = file.parent(statement)
            yield from _after(around if isinstance(around, ast.Try) else statement, file)


def _is_layer_for_cuda(node: ast.AST) -> bool:
    """class CudaAccelerator, beside which a project has, or gets, one for NPUs."""
    if not isinstance(node, ast.ClassDef) or not re.search(r"cuda|nvidia", node.name, re.IGNORECASE):
        return False
    methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    return "is_available" in methods or len(methods & _DEVICE_API) > 2


def _chain(condition: ast.expr, file: PythonFile) -> ast.AST:
    """The whole statement or expression that branches by the condition."""
    around: ast.AST = condition
    for parent in file.ancestors(condition):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.If, ast.IfExp)):
            break
        around = parent
        if isinstance(parent, ast.If):
            break
    return around


@lru_cache(maxsize=4)
def _decided_nodes(file: PythonFile) -> frozenset[ast.AST]:
    judged = (each for decided in _judged(file).values() for each in decided)
    return frozenset([*judged, *_below_imports(file)])


@lru_cache(maxsize=4)
def _judged(file: PythonFile) -> dict[ast.expr, list[ast.AST]]:
    """The conditions about CUDA in this file that stay, each with the nodes that it decides about."""
    stay: dict[ast.expr, list[ast.AST]] = {}
    for condition in _conditions(file):
        regions = list(_decides(condition, file))
        if any(_is_for_cuda(each, file) for each in regions) and not any(_is_for_any(each) for each in regions):
            stay[condition] = [node for region in regions for node in region]
    return stay


def _conditions(file: PythonFile) -> Iterator[ast.expr]:
    """Every expression that asks for CUDA: is_available(), is_cuda, == "cuda"."""
    for node in file.nodes if "cuda" in file.text or "nccl" in file.text else ():
        kind = type(node)
        if kind is ast.Call:
            func = node.func  # type: ignore[attr-defined]
            name = getattr(func, "attr", "") or getattr(func, "id", "")
            asks = name == "is_available" and (file.resolve(func) or "").startswith("torch.cuda.")
            starts = name == "startswith" and any(_is_word(each) for each in node.args)  # type: ignore[attr-defined]
            if asks or starts:
                yield node  # type: ignore[misc]
        elif kind is ast.Compare:
            if any(_is_word(each) for side in (node.left, *node.comparators) for each in _elements(side)):  # type: ignore[attr-defined]
                yield node  # type: ignore[misc]
        elif kind is ast.Attribute and node.attr == "is_cuda":  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def _elements(node: ast.expr) -> Sequence[ast.expr]:
    return node.elts if isinstance(node, (ast.Tuple, ast.List, ast.Set)) else (node,)


def _is_word(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("cuda", "cuda:", "nccl")


def _decides(condition: ast.expr, file: PythonFile, depth: int = 2) -> Iterator[list[ast.AST]]:
    """Everything that runs only where the condition holds, as groups of nodes: one for each place that asks."""
    negated = isinstance(condition, ast.Compare) and isinstance(condition.ops[0], (ast.NotEq, ast.NotIn))
    node: ast.AST = condition
    beside: list[ast.AST] = []
    while isinstance(parent := file.parent(node), (ast.BoolOp, ast.UnaryOp)):
        if isinstance(parent, ast.UnaryOp):
            negated = negated != isinstance(parent.op, ast.Not)
        elif isinstance(parent.op, ast.And) != negated:
            beside += [each for each in parent.values if each is not node]
        node = parent
    if isinstance(parent, ast.IfExp) and isinstance(file.parent(parent), ast.FormattedValue):
        word = parent.body.value if isinstance(parent.body, ast.Constant) else None
        beside += _named("nvidia") if isinstance(word, str) and _PACKAGE.fullmatch(word) else []
    if isinstance(parent, (ast.If, ast.IfExp, ast.While)) and parent.test is node:
        yield [*beside, *_branch(parent, negated, file)]
    elif isinstance(parent, ast.Assert):
        yield [*beside, *_after(parent, file)]
    elif isinstance(parent, ast.Return):
        yield [*beside, *_named(getattr(file.function(parent), "name", ""))]
    elif isinstance(parent, (ast.Assign, ast.AnnAssign)) and depth:
        yield from _by_variable(parent, beside, file, depth)
    elif beside:
        yield beside


def _by_variable(
    statement: ast.Assign | ast.AnnAssign, beside: list[ast.AST], file: PythonFile, depth: int
) -> Iterator[list[ast.AST]]:
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    name = target.id if isinstance(target, ast.Name) else getattr(target, "attr", "")
    about = [*beside, *_named(name)]
    if any(_says_cuda(each) for each in about):
        yield about
        return
    uses = file.uses(target) if isinstance(target, ast.Name) else []
    found = [region for use in uses for region in _decides(use, file, depth - 1)]
    yield from found if len(found) == len(uses) else [[]]  # [] is what anything may be done with


def _named(name: str) -> list[ast.AST]:
    """A name as a node, for what it says."""
    return [ast.Name(name, ast.Load())]


def _branch(choice: ast.If | ast.IfExp | ast.While, negated: bool, file: PythonFile) -> list[ast.AST]:
    def listed(part: Sequence[ast.AST] | ast.AST) -> list[ast.AST]:
        return [part] if isinstance(part, ast.AST) else list(part)

    if not negated:
        return listed(choice.body)
    if isinstance(choice, ast.If) and not choice.orelse and isinstance(choice.body[-1], _LEAVE):
        return [*_after(choice, file), *_named(getattr(file.function(choice), "name", ""))]
    return listed(choice.orelse)


def _after(statement: ast.stmt, file: PythonFile) -> list[ast.AST]:
    """The statements of the same block that follow."""
    parent = file.parent(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return list(block[block.index(statement) + 1 :])
    return []


def _is_for_cuda(region: Sequence[ast.AST], file: PythonFile) -> bool:
    return any(_says_cuda(node) or _calls_for_cuda(node, file) for each in region for node in _always_run(each))


def _is_for_any(region: Sequence[ast.AST]) -> bool:
    """Whether a group of nodes does what NPUs do as well; what an empty one does is not known."""
    found = [node for each in region for node in _always_run(each)]
    if any(_says_cuda(node) for node in found):
        return False
    return not region or any(
        (isinstance(node, ast.Attribute) and node.attr in ("cuda", "to"))
        or (isinstance(node, ast.Constant) and str(node.value).startswith("cuda"))
        for node in found
    )


def _always_run(node: ast.AST) -> Iterator[ast.AST]:
    """The node and what is in it, without the branches of further conditions and what may be missing."""
    stack = [node]
    while stack:
        now = stack.pop()
        yield now
        if isinstance(now, (ast.If, ast.IfExp, ast.While)) and now is not node:
            stack.append(now.test)
        elif not _may_lack_it(now) and not isinstance(now, (ast.FunctionDef, ast.ClassDef)):
            stack.extend(ast.iter_child_nodes(now))


def _may_lack_it(node: ast.AST) -> bool:
    """Whether what fails in a `try` is let pass, as where something is not installed."""
    handlers = node.handlers if isinstance(node, ast.Try) else ()
    return any(
        each.type is None or re.search(r"ImportError|\bException|NotFound", ast.unparse(each.type)) for each in handlers
    )


def _says_cuda(node: ast.AST) -> bool:
    """Whether a name, an import or a short string is of something that only CUDA has."""
    if isinstance(node, ast.Attribute):
        if isinstance(node.value, ast.Attribute) and node.value.attr == "cuda":  # torch.cuda.NAME
            owner = node.value.value
            return isinstance(owner, ast.Name) and owner.id in ("torch", "th") and _npu_lacks(node.attr)
        version = (
            isinstance(node.value, ast.Attribute) and node.value.attr == "version" and node.attr in ("cuda", "hip")
        )
        return version or node.attr in _ABOUT_THE_CARD or bool(_FOR_CUDA.search(node.attr))
    names: list[str] = []
    if isinstance(node, ast.Name):
        names = [node.id]
    elif isinstance(node, (ast.alias, ast.keyword)):
        names = [(node.name if isinstance(node, ast.alias) else node.arg) or ""]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value[:60]:
        names = [node.value[:60]]
    return any(_FOR_CUDA.search(name) for name in names)


@lru_cache(maxsize=256)
def _npu_lacks(function: str) -> bool:
    return function in ("get_device_capability", "CUDAGraph", "graph") or function not in names_of(
        "npu", Target.of().torch_npu
    )


def _calls_for_cuda(node: ast.AST, file: PythonFile) -> bool:
    """Whether a call is of a kernel for CUDA by its name, or of a project's function that asks for a GPU's model."""
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    name = getattr(func, "attr", "") or getattr(func, "id", "")
    definition = definition_of(func, file.names)
    if definition is not None:
        return any(_says_cuda(each) for statement in definition.body for each in _unconditional(statement))
    owner = func.value if isinstance(func, ast.Attribute) else None
    if isinstance(owner, ast.Name) and _CALLED_CUDA.search(owner.id) and not _FOR_ANY.search(owner.id):
        return file.resolve(func) is None or not str(file.resolve(func)).startswith("torch.")
    if file.resolve(func) is not None and str(file.resolve(func)).startswith("torch."):
        return False
    return bool(_CALLED_CUDA.search(name)) and not _FOR_ANY.search(name)


def _unconditional(statement: ast.stmt) -> Iterator[ast.AST]:
    """Only calls that ask for a GPU's model, of what a function always does."""
    if isinstance(statement, (ast.Expr, ast.Assign, ast.Return)):
        for node in _always_run(statement):
            if isinstance(node, ast.Attribute) and node.attr in ("get_device_capability", *_ABOUT_THE_CARD):
                yield node
