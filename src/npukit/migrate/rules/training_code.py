"""Pitfalls in training code: values read in every step (NPK708), double precision (NPK709), channels_last (NPK710),
DataParallel (NPK712), checkpoints without map_location (NPK713), a hard-coded number of processes (NPK714).
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.rule import Finding, Findings, Goal, PythonFile, Severity, described
from npukit.migrate.training import (
    enclosing_loop,
    has_double_star,
    method,
    receiver,
    runs_every_turn,
    step_loops,
    tolerates_failure,
)

_FORMATS = ("torch.channels_last", "torch.channels_last_3d")
_DATA_PARALLEL = (
    *("torch.nn.DataParallel", "torch.nn.parallel.DataParallel"),
    *("torch.nn.parallel.data_parallel", "torch.nn.parallel.data_parallel.DataParallel"),
    *("torch.nn.parallel.replicate", "torch.nn.parallel.replicate.replicate"),  # what DataParallel does, by hand
)
_LOADERS = {"torch.load": 1, "torch.hub.load_state_dict_from_url": 2, "torch.utils.model_zoo.load_url": 2}
_DATA = re.compile(r"cache|dataset|feature|vocab|token|label|sample|batch", re.IGNORECASE)  # made on the CPU
_DATA_CLASS = re.compile(r"dataset|database|data_?module", re.IGNORECASE)
_MODEL = re.compile(r"model|ckpt|checkpoint|weight|state|\.pth\b", re.IGNORECASE)
_OLD = 'Take it from the launcher: int(os.environ["WORLD_SIZE"]).'  # torch.accelerator is newer
_CARDS = re.compile(r"cuda|npu|nccl|hccl|accelerator|device", re.IGNORECASE)
_SIZES = {
    "torch.distributed.init_process_group": (3, "world_size"),
    "torch.multiprocessing.spawn": (2, "nprocs"),
    "torch.multiprocessing.spawn.spawn": (2, "nprocs"),
}
_TYPES = {"torch.float64", "torch.double", "torch.complex128", "torch.cdouble", "torch.DoubleTensor"}
_HOST = "It matters only if the tensor is moved to an NPU, which has no double-precision units."
_FACTORIES = {
    f"torch.{name}"
    for name in (
        *("arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "logspace", "ones", "rand"),
        *("randint", "randn", "randperm", "tensor", "zeros", "Tensor", "FloatTensor"),
    )
}
_CPU = re.compile(r"""\.cpu\(\)|\.numpy\(\)|["']cpu["']""")
_FLOAT64_NAMES = {name.removeprefix("torch.") for name in _TYPES}


@described("NPK708").on_call(("item",))
def value_read(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "item" or call.args:
        return
    loop = enclosing_loop(call, file)
    if loop is None or loop not in step_loops(file) or not runs_every_turn(call, loop, file):
        return
    reads = [node for node in ast.walk(file.statement(call)) if method(node) == "item"]
    if reads[0] is call:  # once a statement
        yield described("NPK708").finding(
            (file, call),
            ".item() is called in every training step",
            evidence=f"{receiver(call, file)}.item()" if "\n" in file.source(call) else "",
        )


@described("NPK709").on(ast.Attribute, says=_FLOAT64_NAMES)
def float64_named(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if file.resolve(name) not in _TYPES or _is_only_named(name, file) or _is_elsewhere(name, file):
        return
    call = file.parent(name)
    if isinstance(call, ast.keyword):
        call = file.parent(call)
    if not _on_cpu(name, file):
        yield _float64_finding(name, isinstance(call, ast.Call) and _is_made_on_host(call, file), file)


@described("NPK709").on_call(("double",))
def float64_called(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    if method(call) != "double" or call.args or call.keywords or "torch" not in file.text:
        return
    if not (file.resolve(call.func) or "").startswith(("torch.", "numpy.")) and not _on_cpu(call, file):
        yield _float64_finding(call, _is_made_on_host(call, file), file)


def _float64_finding(node: ast.AST, on_host: bool, file: PythonFile) -> Finding:
    if on_host:
        return described("NPK709").finding(
            (file, node), "a tensor on the CPU has double precision", why=_HOST, severity=Severity.note
        )
    return described("NPK709").finding((file, node), "double precision is used on the device")


def _is_only_named(name: ast.Attribute, file: PythonFile) -> bool:
    """Return whether a type is only named: x.dtype == torch.float64, pytest.param(torch.float64)"""
    parent = file.parent(name)
    if isinstance(parent, ast.Call) and file.resolve(parent.func) == "pytest.param":
        return True
    return isinstance(parent, (ast.Compare, ast.Dict, ast.Tuple, ast.List, ast.Set))


def _is_elsewhere(name: ast.Attribute, file: PythonFile) -> bool:
    """Return whether a type is used on other devices only: torch.float32 if DEVICE.type == "npu" else torch.float64"""
    choice = file.parent(name)
    asked = file.source(choice.test).replace("'", '"') if isinstance(choice, ast.IfExp) else ""
    return isinstance(choice, ast.IfExp) and choice.orelse is name and '"npu"' in asked


def _is_made_on_host(node: ast.expr, file: PythonFile, depth: int = 4) -> bool:
    """Return whether a tensor is made on the CPU and stays there: torch.ones(3).double()"""
    if isinstance(node, ast.Name) and depth:
        values = [binding.value for binding in file.bindings(node)]
        return bool(values) and all(isinstance(v, ast.expr) and _is_made_on_host(v, file, depth - 1) for v in values)
    if isinstance(node, ast.Subscript):
        return _is_made_on_host(node.value, file, depth)
    if not isinstance(node, ast.Call) or any(keyword.arg in ("device", None) for keyword in node.keywords):
        return False
    name = file.resolve(node.func) or ""
    if name.startswith("torch."):
        return name in _FACTORIES and "set_default_device" not in file.text
    stays = isinstance(node.func, ast.Attribute) and node.func.attr not in ("cuda", "npu")
    types = all((file.resolve(argument) or "").startswith("torch.") for argument in node.args) or method(node) != "to"
    return stays and types and _is_made_on_host(node.func.value, file, depth)  # type: ignore[attr-defined]


def _names_cpu(node: ast.AST, file: PythonFile) -> bool:
    return bool(_CPU.search(file.source(node)))


def _on_cpu(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a statement mentions the CPU."""
    statement = file.statement(node)
    if isinstance(statement, (ast.If, ast.For, ast.With)):
        return False
    return _names_cpu(statement, file)


@described("NPK710").on(ast.Attribute)
def channels_last(name: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if not name.attr.startswith("channels_last") or file.resolve(name) not in _FORMATS or tolerates_failure(name, file):
        return
    if isinstance(file.parent(name), (ast.keyword, ast.Call)):
        severity = _if_conditional(name, file, ast.If)
        yield described("NPK710").finding((file, name), "channels_last is rejected on NPUs", severity=severity)


@described("NPK712").on_function(*_DATA_PARALLEL)
def data_parallel(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    severity = _if_conditional(call, file, ast.If, ast.IfExp)
    yield described("NPK712").finding((file, call), "DataParallel does not run on NPUs", severity=severity)


def _if_conditional(node: ast.AST, file: PythonFile, *kinds: type[ast.AST]) -> Severity | None:
    """Return a warning if a condition decides whether code runs, else the rule's own severity."""
    return Severity.warning if any(isinstance(around, kinds) for around in file.ancestors(node)) else None


@described("NPK713").on_function(*_LOADERS)
def load(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    position = _LOADERS[file.resolve(call.func) or ""]
    if has_double_star(call) or file.argument(call, position, "map_location") is not None:
        return
    path = file.source(call.args[0]) if call.args else ""
    is_data = _DATA.search(path) or _DATA_CLASS.search(getattr(file.class_around(call), "name", ""))
    if _is_saved_beside(path, call, file) or (is_data and not _MODEL.search(path)):
        return
    yield described("NPK713").finding((file, call), "checkpoints saved on CUDA need map_location")


def _is_saved_beside(path: str, call: ast.Call, file: PythonFile) -> bool:
    """Return whether the same function saves what it loads, so that the machine has the device."""
    scope = next((outer for outer in file.ancestors(call) if isinstance(outer, (ast.FunctionDef, ast.Module))), None)
    return any(
        isinstance(node, ast.Call)
        and file.resolve(node.func) == "torch.save"
        and len(node.args) > 1
        and file.source(node.args[1]) == path
        for node in (ast.walk(scope) if isinstance(scope, ast.FunctionDef) and "save" in file.by_name else ())
    )


@described("NPK714").on_function(*_SIZES)
def world_size(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    position, name = _SIZES[file.resolve(call.func) or ""]
    size = file.argument(call, position, name)
    if isinstance(size, ast.Name):
        values = [binding.value for binding in file.bindings(size) if binding.kind == "assign"]
        size = values[0] if len(values) == 1 else size
    if isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value > 1 and _uses_cards(call, file):
        yield described("NPK714").finding(
            (file, call),
            "the number of processes is hard-coded",
            remedy="" if goal.names_devices else _OLD,
            evidence=f"{name}={size.value}",
        )


def _uses_cards(call: ast.Call, file: PythonFile) -> bool:
    """Return whether each process may need a card, which gloo and functions without devices do not."""
    first = file.argument(call, 0, "backend") or file.argument(call, 0, "fn")
    if isinstance(first, ast.Constant):
        return first.value not in ("gloo", "mpi")
    functions = {node.name: node for node in file.of_type(ast.FunctionDef)}
    names = [first.id] if isinstance(first, ast.Name) and first.id in functions else []
    texts = [] if names else [file.text]
    while names:
        if function := functions.pop(names.pop(), None):
            texts.append(file.source(function))
            names += [node.id for node in ast.walk(function) if isinstance(node, ast.Name)]
    return any(_CARDS.search(text) for text in texts)
