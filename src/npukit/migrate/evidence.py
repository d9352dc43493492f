"""What shows that code is for CUDA only: a library, a kernel, a question for a GPU's model, a function without a
counterpart. The report quotes it, so that a person reads why a place was left.

stays:  import triton                          if not HAVE_TE: raise ImportError(...)
        @pytest.mark.skipif(not HAVE_FA, ...)  major, _ = torch.cuda.get_device_capability()
        def quantize_fp8(x): ...               def rotate(x): _kernel[grid](x)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from npukit.facts.libraries import named
from npukit.facts.target import Target
from npukit.facts.torch_npu.names import names_of
from npukit.migrate.kernels import always_run, weak_names
from npukit.migrate.own_cuda import needs_cuda, own_cuda
from npukit.source import Place, PythonFile
from npukit.source.names import definition_of

# Of get_device_properties: torch_npu has these names, and None for each.
ABOUT_THE_CARD = {"major", "minor", "multi_processor_count", "max_threads_per_multi_processor"}
ABOUT_THE_CARD |= {f"shared_memory_per_{each}" for each in ("block", "block_optin", "multiprocessor")}
ABOUT_THE_CARD |= {"regs_per_multiprocessor", "warp_size", "gcnArchName"}
_CUDNN_SWITCHES = {"allow_tf32", "benchmark", "deterministic", "enabled"}
_CALLED_CUDA = re.compile(r"(?:^|_)cuda(?:_|$)|^cuda|cuda$", re.IGNORECASE)
_FOR_ANY = re.compile(
    r"(?:^|_)(?:to|move|copy|put|use|has|is|on|init|set|get|empty|clear|reset|sync\w*|with)_?cuda|^cuda$|is_cuda"
    r"|cuda_?(?:rng|seed|manual|mem|device|time|stream|sync|cache|event|avail|visible|empty|tensor|fetch)",
    re.IGNORECASE,
)
_EXTENSION = re.compile(r"_C|\w+_ext|.*\.cuh?")  # what a project's build makes
_LONGEST = 60  # of a string that is a name


@dataclass(frozen=True)
class Evidence:
    """One thing that shows that code is for CUDA only.

    >>> Evidence("library", "FlashAttention", place).sentence
    'It needs FlashAttention (attention.py:3).'
    """

    kind: str  # library, kernel, card, api, layer, name
    library: str  # what it is called
    place: Place

    @property
    def sentence(self) -> str:
        where = f"{self.place.file.name}:{self.place.line}"
        return f"{'It needs ' if self.kind in ('library', 'kernel') else ''}{self.library} ({where})."


def of_node(node: ast.AST, file: PythonFile) -> tuple[str, str] | None:
    """The kind and the name of what only CUDA has, where a node names it; a call is asked in `of_call`."""
    if isinstance(node, ast.Attribute):
        return _of_attribute(node) or _of_pair(node, file)
    if isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and (library := weak_names(file).get(node.id)):
            return "kernel", library
        return _speaks(node.id)
    if isinstance(node, ast.alias):
        return _speaks(node.name)
    if isinstance(node, ast.keyword):  # an option that is only passed on shows nothing
        return _speaks(node.arg or "") if not isinstance(node.value, (ast.Name, ast.Attribute)) else None
    if isinstance(node, ast.ImportFrom):
        return _speaks(node.module or "")
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value[:_LONGEST]:
        return _speaks(node.value[:_LONGEST]) if not node.value.startswith("NVTE_") else None  # any test's environment
    return None


@lru_cache(maxsize=65536)
def _speaks(text: str) -> tuple[str, str] | None:
    if library := named(text):
        return "library", library.name
    return ("kernel", text) if _EXTENSION.fullmatch(text) else None


def _of_attribute(node: ast.Attribute) -> tuple[str, str] | None:
    owner, name = node.value, node.attr
    if isinstance(owner, ast.Attribute) and owner.attr == "cuda":  # torch.cuda.NAME
        is_torch = isinstance(owner.value, ast.Name) and owner.value.id in ("torch", "th")
        return ("api", f"torch.cuda.{name}") if is_torch and npu_lacks(name) else None
    if getattr(owner, "attr", "") == "version" and name in ("cuda", "hip"):
        return "card", f"torch.version.{name}"
    asks_cudnn = getattr(owner, "attr", getattr(owner, "id", "")) == "cudnn" and isinstance(node.ctx, ast.Load)
    if name in ABOUT_THE_CARD or (asks_cudnn and name in _CUDNN_SWITCHES):
        return "card", name
    return _speaks(name)


def _of_pair(node: ast.Attribute, file: PythonFile) -> tuple[str, str] | None:
    """ops.scan_forward_cuda, where there is an ops.scan_forward_cpu as well: two functions of a compiled extension"""
    pair = node.attr.endswith("_cuda") and f"{node.attr[:-4]}cpu" in file.by_name and not _FOR_ANY.search(node.attr)
    is_of_module = isinstance(node.value, ast.Name) and bool(file.names.bindings_in(file.tree, node.value.id))
    return ("kernel", node.attr) if pair and is_of_module and isinstance(node.ctx, ast.Load) else None


@lru_cache(maxsize=256)
def npu_lacks(function: str) -> bool:
    """Whether a function of torch.cuda has no counterpart in torch.npu that answers."""
    known = names_of("npu", Target.of().torch_npu)
    return function in ("get_device_capability", "CUDAGraph", "graph") or function not in known


def of_call(node: ast.AST, file: PythonFile) -> tuple[str, str] | None:
    """The same of a call: of a kernel by its name, or of a function of the project that asks for a GPU's model."""
    if not isinstance(node, ast.Call):
        return None
    func = node.func
    name = getattr(func, "attr", "") or getattr(func, "id", "")
    if name == "cuda" and isinstance(func, ast.Attribute):
        method = own_cuda(func.value, file)
        return ("name", "cuda() of its own class") if method and needs_cuda(method) else None
    if name == "apply" and isinstance(func, ast.Attribute) and _is_kernel_function(func.value, file):
        return "kernel", file.source(func.value)
    is_named = bool(_CALLED_CUDA.search(name)) and not _FOR_ANY.search(name)
    definition = definition_of(func, file.names, "" if is_named else "get_device_")
    if definition is not None:
        parts = (each for statement in definition.body for each in always_run(statement))
        asks = (isinstance(each, ast.Attribute) and each.attr == "get_device_capability" for each in parts)
        makes_kernel = is_named and "autograd.Function" in ast.unparse(definition)  # def _bias_act_cuda(): class ...
        return ("card", name) if makes_kernel or (is_named and _always_says(definition.body)) or any(asks) else None
    if (file.resolve(func) or "").startswith("torch."):
        return None
    owner = func.value if isinstance(func, ast.Attribute) else None
    owned = isinstance(owner, ast.Name) and _CALLED_CUDA.search(owner.id) and not _FOR_ANY.search(owner.id)
    return ("kernel", name) if is_named or owned else None


def _is_kernel_function(node: ast.expr, file: PythonFile) -> bool:
    """A torch.autograd.Function of the project whose forward calls a compiled extension: return _C.forward(x)"""
    definition = definition_of(node, file.names, "Function")
    methods = definition.body if isinstance(definition, ast.ClassDef) else ()
    return any(_always_says(each.body) for each in methods if getattr(each, "name", "") == "forward")  # type: ignore[attr-defined]


def _always_says(body: Iterable[ast.stmt]) -> bool:
    found = (node for statement in body for node in always_run(statement))
    return any(_of_attribute(node) if isinstance(node, ast.Attribute) else _named_by(node) for node in found)


def _named_by(node: ast.AST) -> tuple[str, str] | None:
    return _speaks(node.id if isinstance(node, ast.Name) else getattr(node, "module", None) or "")


def first(nodes: Iterable[ast.AST], texts: Iterable[str], file: PythonFile, calls: bool = True) -> Evidence | None:
    """The first evidence in what always runs of some code, or in texts that say what it is about."""
    nodes = list(nodes)
    where = file.place(next((each for each in nodes if hasattr(each, "lineno")), file.tree))
    for text in texts:
        if library := named(text):
            return Evidence("name", library.name, where)
    for each in nodes:
        for node in always_run(each):
            if found := of_node(node, file) or (of_call(node, file) if calls else None) or _layout(node):
                return Evidence(*found, file.place(node))
    return None


def _layout(node: ast.AST) -> tuple[str, str] | None:
    """torch.channels_last, which torch_npu refuses; other code beside it may well be for NPUs."""
    is_layout = isinstance(node, ast.Attribute) and node.attr.startswith("channels_last")
    return ("api", "channels_last") if is_layout else None


def leaves(statement: ast.stmt) -> bool:
    """Whether nothing behind a statement runs: return, raise, pytest.skip(), sys.exit()"""
    call = statement.value if isinstance(statement, ast.Expr) else None
    name = getattr(call.func, "attr", getattr(call.func, "id", "")) if isinstance(call, ast.Call) else ""
    return isinstance(statement, (ast.Return, ast.Raise, ast.Continue, ast.Break)) or name in (
        "skip",
        "skipTest",
        "exit",
    )
