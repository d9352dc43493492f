"""Evidence that code is for CUDA only. The report quotes it to explain why code was kept.

import triton                               # a library
def quantize_fp8(x): ...                    # a name
def rotate(x): _kernel[grid](x)             # a kernel
torch.cuda.get_device_capability()          # a question for the model of a GPU
@pytest.mark.skipif(not HAVE_FA, ...)       # a test that needs a library
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
from npukit.migrate.kernels import unconditional_nodes
from npukit.source import Place, PythonFile
from npukit.source.definitions import definition_of
from npukit.source.nodes import last_name

# Properties of a card that torch_npu has, but which are None.
ABOUT_THE_CARD = {"major", "minor", "multi_processor_count", "max_threads_per_multi_processor"}
ABOUT_THE_CARD |= {f"shared_memory_per_{unit}" for unit in ("block", "block_optin", "multiprocessor")}
ABOUT_THE_CARD |= {"regs_per_multiprocessor", "warp_size", "gcnArchName"}
_CUDNN_SWITCHES = {"allow_tf32", "benchmark", "deterministic", "enabled"}
_CALLED_CUDA = re.compile(r"(?:^|_)cuda(?:_|$)|^cuda|cuda$", re.IGNORECASE)
FOR_ANY = re.compile(
    r"(?:^|_)(?:to|move|copy|put|use|has|is|on|init|set|get|empty|clear|reset|sync\w*|with)_?cuda|^cuda$|is_cuda"
    r"|cuda_?(?:rng|seed|manual|mem|device|time|stream|sync|cache|event|avail|visible|empty|tensor|fetch)",
    re.IGNORECASE,
)
_EXTENSION = re.compile(r"_C|\w+_ext|.*\.cuh?|.*_cuda\.(?:c|cc|cpp)")  # compiled extensions and their sources


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence that code is for CUDA only.

    >>> Evidence("library", "FlashAttention", place).sentence
    'It needs FlashAttention (attention.py:3).'
    """

    kind: str  # library, kernel, card, api, layer, name
    library: str  # the name of the library, kernel or function
    place: Place

    @property
    def sentence(self) -> str:
        where = f"{self.place.file.name}:{self.place.line}"
        return f"{'It needs ' if self.kind in ('library', 'kernel') else ''}{self.library} ({where})."


@lru_cache(maxsize=65536)
def evidence_in_text(text: str) -> tuple[str, str] | None:
    """Return the kind and name of evidence in a name or short string, such as "flash_attn" or "scan.cu"."""
    if library := named(text):
        return "library", library.name
    return ("kernel", text) if _EXTENSION.fullmatch(text) else None


def evidence_in_attribute(node: ast.Attribute) -> tuple[str, str] | None:
    """Return the kind and name of evidence in an attribute, such as torch.version.cuda or properties.warp_size."""
    owner, name = node.value, node.attr
    if isinstance(owner, ast.Attribute) and owner.attr == "cuda":  # torch.cuda.NAME
        is_torch = isinstance(owner.value, ast.Name) and owner.value.id in ("torch", "th")
        return ("api", f"torch.cuda.{name}") if is_torch and npu_lacks(name) else None
    if getattr(owner, "attr", "") == "version" and name in ("cuda", "hip"):
        return "card", f"torch.version.{name}"
    asks_cudnn = last_name(owner) == "cudnn" and isinstance(node.ctx, ast.Load)
    if name in ABOUT_THE_CARD or (asks_cudnn and name in _CUDNN_SWITCHES):
        return "card", name
    return evidence_in_text(name)


@lru_cache(maxsize=256)
def npu_lacks(function: str) -> bool:
    """Return whether torch.npu has no useful counterpart of a function of torch.cuda."""
    known = names_of("npu", Target.of().torch_npu)
    return function in ("get_device_capability", "CUDAGraph", "graph") or function not in known


def evidence_in_call(node: ast.AST, file: PythonFile) -> tuple[str, str] | None:
    """Return the kind and name of evidence in a call of a kernel, or of a function that asks for a GPU's model."""
    if not isinstance(node, ast.Call):
        return None
    func = node.func
    name = last_name(func)
    if name == "cuda":
        return None
    if name == "apply" and isinstance(func, ast.Attribute) and _is_kernel_function(func.value, file):
        return "kernel", file.source(func.value)
    is_named = bool(_CALLED_CUDA.search(name)) and not FOR_ANY.search(name)
    definition = definition_of(func, file.names, "" if is_named else "get_device_")
    if definition is not None:
        parts = (inner for statement in definition.body for inner in unconditional_nodes(statement))
        asks = (isinstance(inner, ast.Attribute) and inner.attr == "get_device_capability" for inner in parts)
        makes_kernel = is_named and "autograd.Function" in ast.unparse(definition)  # def _bias_act_cuda(): class ...
        return (
            ("card", name) if makes_kernel or (is_named and _always_uses_cuda(definition.body)) or any(asks) else None
        )
    if (file.resolve(func) or "").startswith("torch."):
        return None
    owner = func.value if isinstance(func, ast.Attribute) else None
    owned = isinstance(owner, ast.Name) and _CALLED_CUDA.search(owner.id) and not FOR_ANY.search(owner.id)
    return ("kernel", name) if is_named or owned else None


def _is_kernel_function(node: ast.expr, file: PythonFile) -> bool:
    """Return whether a node is a torch.autograd.Function of the project whose forward calls a compiled extension."""
    definition = definition_of(node, file.names, "Function")
    methods = definition.body if isinstance(definition, ast.ClassDef) else ()
    return any(_always_uses_cuda(method.body) for method in methods if getattr(method, "name", "") == "forward")  # type: ignore[attr-defined]


def _always_uses_cuda(body: Iterable[ast.stmt]) -> bool:
    nodes = (node for statement in body for node in unconditional_nodes(statement))
    return any(evidence_in_attribute(node) if isinstance(node, ast.Attribute) else _named_by(node) for node in nodes)


def _named_by(node: ast.AST) -> tuple[str, str] | None:
    return evidence_in_text(node.id if isinstance(node, ast.Name) else getattr(node, "module", None) or "")
