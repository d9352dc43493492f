"""Find calls of torch functions that NPUs lack or limit, using the tables of what torch_npu supports."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache

from npukit.facts.target import Target
from npukit.facts.torch_npu.support import Support, support, unsupported
from npukit.migrate.goal import Goal
from npukit.migrate.training import method
from npukit.source import PythonFile

# Reported by other rules, or relevant to the host only.
_ELSEWHERE = (
    "torch.cuda",
    "torch.backends",
    "torch.nn.DataParallel",
    "torch.nn.parallel.data_parallel",
    "torch.utils.cpp_extension",
    "torch.compiler",
    "torch.profiler.",
    "torch.onnx",
    "torch.export",
    "torch.UntypedStorage",
    "torch.TypedStorage",
    "torch.autograd.profiler",
    "torch.from_dlpack",
    "torch.utils",
)


# Methods that are practically unique to tensors.
_FACTORIES = {
    f"torch.{name}"
    for name in (
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones"),
        *("rand", "randint", "randn", "randperm", "tensor", "zeros"),
    )
}
_FROM_CPU = re.compile(r"\.cpu\(\)|\bfrom_numpy\(|\bas_tensor\(np\.|\btensor\(np\.")
_METHODS = {
    "cholesky_inverse",
    "digamma",
    "geqrf",
    "heaviside_",
    "index_reduce_",
    "lgamma",
    "log_normal_",
    "logdet",
    "matrix_exp",
    "nextafter",
    "ormqr",
    "slogdet",
    "sparse_mask",
    "to_mkldnn",
}


@lru_cache(maxsize=8)
def unsupported_names(target: Target) -> Mapping[str, frozenset[str]]:
    """Return the last names of functions that may lack a kernel on the target, with their modules or classes.

    Functions of torch itself and methods are listed without a module.
    """
    owners: dict[str, set[str]] = defaultdict(set)
    for api in unsupported(target):
        if not api.startswith(_ELSEWHERE):
            *_, owner, name = api.split(".")
            owners[name].add(owner)
    plain = {name for name in owners if "torch" in owners[name]} | _METHODS
    return {name: frozenset(() if name in plain else owners[name]) for name in {*owners, *plain}}


def called_api(call: ast.Call, file: PythonFile, goal: Goal) -> Support | None:
    """Return what the facts know about the torch function that is called, by whatever name."""
    name = file.resolve(call.func)
    if name is None and method(call) in _METHODS and "torch" in file.text:
        name = f"torch.Tensor.{method(call)}"
    if not name or not name.startswith("torch.") or name.startswith(_ELSEWHERE) or _on_cpu(call, name, file):
        return None
    return support(name, goal.target)


def _on_cpu(call: ast.Call, name: str, file: PythonFile) -> bool:
    """Return whether a call works on the CPU, because of its device, its input, or a new tensor without a device."""
    device = file.argument(call, None, "device")
    if device is not None:
        return isinstance(device, ast.Constant) and device.value == "cpu"
    if name in _FACTORIES:
        return "set_default_" not in file.text and not any(keyword.arg is None for keyword in call.keywords)
    given = call.func.value if name.startswith("torch.Tensor.") and isinstance(call.func, ast.Attribute) else None
    first = given or (call.args[0] if call.args else None)
    return first is not None and bool(_FROM_CPU.search(file.source(first)))
