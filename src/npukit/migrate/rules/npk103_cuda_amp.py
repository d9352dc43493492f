"""Replace torch.cuda.amp with torch.amp.

before:           with torch.cuda.amp.autocast(dtype=torch.float16): ...
after (npu):      with torch.amp.autocast("npu", dtype=torch.float16): ...
after (portable): with torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda", dtype=torch.float16): ...

The same holds for GradScaler, custom_fwd and custom_bwd, and for `from torch.cuda.amp import ...`. torch functions that
default to CUDA get an explicit device: torch.amp.GradScaler(), torch.is_autocast_enabled().
"""

from __future__ import annotations

import ast

from npukit.facts.versions import key
from npukit.migrate import lookup
from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.style import torch_name

rule = Rule(
    "NPK103",
    "cuda-amp",
    words=("cuda", "GradScaler", "_autocast_"),
    fixes=True,
    why="torch.cuda.amp acts on CUDA devices only: on an NPU nothing is cast or scaled.",
    remedy="Use torch.amp with the device type.",
    effort=Effort(15, 5),
)

_NAMES = {
    "torch.cuda.amp.autocast": "autocast",
    "torch.cuda.amp.autocast_mode.autocast": "autocast",
    "torch.cuda.amp.GradScaler": "GradScaler",
    "torch.cuda.amp.grad_scaler.GradScaler": "GradScaler",
    "torch.cuda.amp.custom_fwd": "custom_fwd",
    "torch.cuda.amp.custom_bwd": "custom_bwd",
}
# Name -> the name that takes a device's type, and how many arguments there are without one.
_MEAN_CUDA = {
    "torch.is_autocast_enabled": ("is_autocast_enabled", 0),
    "torch.set_autocast_enabled": ("set_autocast_enabled", 1),
    "torch.get_autocast_gpu_dtype": ("get_autocast_dtype", 0),
    "torch.set_autocast_gpu_dtype": ("set_autocast_dtype", 1),
    "torch.amp.GradScaler": ("GradScaler", 0),
    "torch.amp.grad_scaler.GradScaler": ("GradScaler", 0),
}
_AUTOCAST_SINCE = "1.10"  # torch.autocast, which takes the type of a device
_LAST_NAMES = tuple(name.rpartition(".")[2] for name in _MEAN_CUDA)


@rule.on(ast.Module)
def use(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    for node, resolved in lookup.cuda_names(file):
        if not resolved.startswith("torch.cuda.amp") or is_kept(node, file, goal) or _is_for_older_torch(node, file):
            continue
        name = _NAMES.get(resolved)
        edits = _edits(node, name, file, goal) if name else ()
        if resolved == "torch.cuda.amp":
            edits = _of_module(node, "amp", file, goal)
        yield rule.finding(
            (file, node),
            f"{resolved} works on CUDA devices only",
            remedy=f"Use torch.amp.{name} with the device type." if name else "Use torch.amp instead.",
            edits=edits or (),
        )


@rule.on_call(_LAST_NAMES)
def default(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    """Report calls that mean CUDA because they name no device."""
    new, arguments = _MEAN_CUDA.get(file.resolve(call.func) or "", ("", 0))
    names_device = any(keyword.arg in ("device", None) for keyword in call.keywords)
    if _is_for_older_torch(call, file):
        return
    if not new or len(call.args) != arguments or names_device or is_kept(call, file, goal):
        return
    if not _is_in_torch_amp(new, goal):
        yield from _in_older_torch(call, file)
        return
    kind = style_of(goal).device_type(call, file, goal, of_card=True)
    end = file.span(call.func)[1]
    old = file.source(call.func).rpartition(".")[2]
    renamed = [Edit(end - len(old), end, new)] if old.endswith("gpu_dtype") else []
    follows = isinstance(call.func, ast.Attribute) or not renamed  # else its import would have to change too
    edits = [*kind.edits, *renamed, *_first_argument(call, kind.text, file)] if kind and follows else []
    yield rule.finding(
        (file, call),
        f"{file.source(call.func)} without a device type defaults to CUDA",
        why="On an NPU it scales nothing, and does not see the active autocast.",
        edits=edits,
    )


def _in_older_torch(call: ast.Call, file: PythonFile) -> Findings:
    """Report functions of an older torch that take no device. torch.npu has those of autocast as well."""
    name = file.source(call.func)
    if "autocast" in name:
        yield rule.finding(
            (file, call),
            f"{name} answers for CUDA only",
            why="With this torch, it does not see the autocast of an NPU.",
            remedy=f"On NPUs, call torch.npu.{name.rpartition('.')[2].replace('gpu_', '')} instead.",
        )


def _is_for_older_torch(node: ast.AST, file: PythonFile) -> bool:
    """Return whether an import is a fallback: except ImportError: from torch.cuda.amp import GradScaler"""
    return any(isinstance(ancestor, ast.ExceptHandler) for ancestor in file.ancestors(node))


def _edits(node: ast.Attribute | ast.Name, name: str, file: PythonFile, goal: Goal) -> tuple[Edit, ...] | None:
    """Return the edits that migrate one use, or None if the function is passed on rather than called."""
    kind = style_of(goal).device_type(node, file, goal, of_card=True)
    head = _head(node, name, file, goal)
    if head is None or kind is None:
        return None
    call = file.parent(node)
    is_called = isinstance(call, ast.Call) and call.func is node
    if not _takes_type(name, goal) and (is_called or name.startswith("custom_")):
        return head  # that of torch.npu takes the same arguments
    if name.startswith("custom_"):
        if isinstance(call, ast.Call) and is_called:
            given = f"device_type={kind.text}"
            last = [file.insert(file.span(value)[1], f", {given}") for value in call.args[-1:]]  # custom_fwd(forward)
            return (*kind.edits, *head, *(last or _first_argument(call, given, file)))
        end = file.span(node)[1]
        return (*kind.edits, *head, file.insert(end, f"(device_type={kind.text})"))
    if isinstance(call, ast.Call) and is_called:
        keywords = _as_keywords(call, file) if name == "autocast" else ()
        return (*kind.edits, *head, *_first_argument(call, kind.text, file), *keywords)
    if name == "autocast":
        return _of_module(node, "amp.autocast", file, goal)
    return head if not isinstance(call, ast.Call) else None  # an annotation


def _of_module(node: ast.Attribute | ast.Name, name: str, file: PythonFile, goal: Goal) -> tuple[Edit, ...] | None:
    """Return the edits that pass on torch.npu's, which takes the same arguments: partial(torch.npu.amp.autocast)"""
    if not isinstance(node, ast.Attribute):
        return None
    module = style_of(goal).module(node, file, goal)
    return (*module.edits, file.replace(node, f"{module.text}.{name}"))


def _head(node: ast.Attribute | ast.Name, name: str, file: PythonFile, goal: Goal) -> tuple[Edit, ...] | None:
    """Return the edits that write torch.amp.NAME in place of a dotted name. For a bare name, its import is changed."""
    if not _is_in_torch_amp(name, goal):
        return _old_head(node, name, file, goal)
    if isinstance(node, ast.Name):
        statement = next(b.node for b in file.bindings(node) if b.kind == "import")
        if edits := _import_edits(statement, file, goal):
            return edits
    torch = torch_name(file)
    return (*torch.edits, file.replace(node, f"{torch.text}.amp.{name}"))


def _is_in_torch_amp(name: str, goal: Goal) -> bool:
    """Return whether torch.amp has the name for a device that is passed to it."""
    return goal.names_devices or (goal.autocast_names_devices and ("custom_" in name or "autocast_" in name))


def _takes_type(name: str, goal: Goal) -> bool:
    has_autocast = name == "autocast" and key(goal.torch) >= key(_AUTOCAST_SINCE)
    return has_autocast or _is_in_torch_amp(name, goal)


def _old_head(node: ast.Attribute | ast.Name, name: str, file: PythonFile, goal: Goal) -> tuple[Edit, ...] | None:
    """Return the edits for an older torch, which has torch.autocast and the amp modules of torch.cuda and torch.npu."""
    torch = torch_name(file)
    if _takes_type(name, goal):
        return (*torch.edits, file.replace(node, f"{torch.text}.{name}"))
    if name == "GradScaler" and not isinstance(file.parent(node), ast.Call):
        return None
    module = style_of(goal).module(node, file, goal)
    return (*module.edits, file.replace(node, f"{module.text}.amp.{name}"))


def _import_edits(node: ast.AST, file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    """Return the edits that import from torch.amp instead of torch.cuda.amp, if every use can follow."""
    if not isinstance(node, ast.ImportFrom) or node.module != "torch.cuda.amp" or _is_used_for_cuda(node, file, goal):
        return ()
    for alias in node.names:
        known = f"torch.cuda.amp.{alias.name}" in _NAMES and _is_in_torch_amp(alias.name, goal)
        if not known or (alias.name == "autocast" and _passed_on(alias, file)):
            return ()
    at = file.text.index("torch.cuda.amp", file.span(node)[0])
    return (Edit(at, at + len("torch.cuda.amp"), "torch.amp"),)


def _is_used_for_cuda(statement: ast.AST, file: PythonFile, goal: Goal) -> bool:
    """Return whether an imported name is used in code that is kept."""
    names = [alias.asname or alias.name for alias in getattr(statement, "names", ())]
    uses = (use for name in names for use in file.by_name.get(name, ()) if isinstance(use, ast.Name))
    return any(is_kept(use, file, goal) for use in uses)


def _passed_on(alias: ast.alias, file: PythonFile) -> bool:
    name = alias.asname or alias.name
    uses = [use for use in file.by_name.get(name, ()) if isinstance(use, ast.Name) and isinstance(use.ctx, ast.Load)]
    return not all(isinstance(call := file.parent(use), ast.Call) and call.func is use for use in uses)


@rule.on(ast.ImportFrom)
def unused_import(node: ast.ImportFrom, file: PythonFile, goal: Goal) -> Findings:
    """Migrate an import even if its names are not used in this file."""
    edits = () if _is_for_older_torch(node, file) else _import_edits(node, file, goal)
    if edits and not is_kept(node, file, goal):
        yield rule.finding(
            (file, node), "torch.cuda.amp works on CUDA devices only", remedy="Import it from torch.amp.", edits=edits
        )


def _first_argument(call: ast.Call, text: str, file: PythonFile) -> tuple[Edit, ...]:
    open_bracket = file.text.index("(", file.span(call.func)[1])
    comma = "," if file.text[open_bracket + 1] in "\r\n" else ", "
    return (file.insert(open_bracket + 1, text + (comma if call.args or call.keywords else "")),)


def _as_keywords(call: ast.Call, file: PythonFile) -> tuple[Edit, ...]:
    """Return the edits that name the arguments of torch.cuda.amp.autocast(True, dtype). torch.amp reorders them."""
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return ()
    return tuple(
        file.insert(file.span(argument)[0], f"{name}=")
        for argument, name in zip(call.args, ("enabled", "dtype", "cache_enabled"), strict=False)
    )
