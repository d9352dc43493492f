"""Replace torch.cuda functions with their counterparts.

before:           if torch.cuda.is_available(): torch.cuda.synchronize()
after (npu):      if torch.npu.is_available(): torch.npu.synchronize()
after (portable): if torch.accelerator.is_available(): torch.get_device_module(DEVICE).synchronize()

Names are followed through imports and aliases. A name that torch.npu does not have is reported and not changed.
In the portable style, seeds are set with torch.manual_seed, which seeds every device. Functions that the CPU lacks are
called only if there is an accelerator. In annotations, streams and events become torch.Stream and torch.Event.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.facts.torch_npu.names import names_of
from npukit.migrate import compat, writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.migrate.rules.npk102_cuda_imports import goes_over
from npukit.migrate.writing import Text
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK101",
    "cuda-functions",
    words=("cuda",),
    fixes=True,
    phase=Phase.rewrite,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Use the counterpart in torch.accelerator or torch.npu.",
    effort=Effort(15, 5),
)

_OTHER_RULES = {"amp"}
_DIFFERENT = {"get_device_capability": "it returns None on an NPU, so comparisons with it raise"}
_RENAMED = {"CUDAGraph": "NPUGraph", "CUDAPluggableAllocator": "NPUPluggableAllocator"}
_ONLY_CUDA = re.compile(
    r"CUDA_HOME|CUDAExtension|(?<![a-z])(?:apex|triton|cupy|tensorrt|flash_attn|xformers)(?![a-z])", re.IGNORECASE
)  # stays false
_SEEDS = ("manual_seed", "manual_seed_all")


@rule.on(ast.Module)
def check(module: ast.Module, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    for node, _ in writing.cuda_names(file):
        yield from _check(node, file, goal)


def _check(node: ast.Attribute | ast.Name, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    part, function = _function(node, file)
    if function in _OTHER_RULES or writing.serves_npu_already(node, file):
        return
    if function == "is_available" and _ONLY_CUDA.search(file.source(_condition(node, file))):
        return
    why = _why_not(function, goal)
    if why:
        lacks = "a different name" if function in _RENAMED else "no counterpart"
        yield rule.finding(
            (file, node), f"torch.cuda.{function} has {lacks} in torch.npu", why=why, remedy="Rewrite it by hand."
        )
        return
    new = _portable(part, function, file, goal) if goal.portable else _npu(part, function, file, goal)
    if new is not None:
        yield rule.finding(
            (file, node),
            f"torch.cuda{'.' + function if function else ''} requires a CUDA device",
            remedy=f"Use {new.text}." if new.text else "Remove it: torch.manual_seed seeds every device.",
            edits=new.edits,
        )


def _condition(node: ast.AST, file: PythonFile) -> ast.AST:
    """The whole condition that a call is part of."""
    call = file.parent(node) or node
    for parent in file.ancestors(call):
        if not isinstance(parent, (ast.BoolOp, ast.UnaryOp, ast.Assign)):
            break
        call = parent
    return call


def _function(node: ast.Attribute | ast.Name, file: PythonFile) -> tuple[ast.expr, str]:
    """The part of the chain that is torch.cuda.NAME, and NAME."""
    part: ast.expr = node
    while isinstance(part, ast.Attribute) and (file.resolve(part) or "").count(".") > 2:
        part = part.value
    name = file.resolve(part) or ""
    return part, name.removeprefix("torch.cuda").lstrip(".").split(".")[0]


def _why_not(function: str, goal: Goal) -> str:
    if function in _DIFFERENT:
        return f"torch.npu has a function of this name, but {_DIFFERENT[function]}."
    if goal.portable and function in _RENAMED:
        return f"torch.npu calls it {_RENAMED[function]}, so no single name works on both."
    known = (
        not function
        or function in names_of("npu", goal.target.torch_npu)
        or function in _RENAMED
        or function == "OutOfMemoryError"
    )
    return "" if known else f"torch.npu has no {function}."


def _npu(part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
    if isinstance(part, ast.Name):  # from torch.cuda import NAME
        if function == "OutOfMemoryError" or any(goes_over(each.node, goal) for each in file.bindings(part)):
            return None
        return _replaced(Text(f"{writing.device_module(file, goal).text}.{function}"), part, file)
    imports = writing.import_torch_npu(file)
    if function == "OutOfMemoryError":
        new = f"{writing.torch_name(file).text}.OutOfMemoryError"
        return Text(new, (file.replace(part, new),))
    if isinstance(part, ast.Attribute) and not function:  # torch.cuda itself
        end = file.span(part)[1]
        return Text("torch.npu", (*imports, Edit(end - len("cuda"), end, "npu")))
    assert isinstance(part, ast.Attribute)
    inner = file.span(part.value)[1]
    if isinstance(part.value, ast.Attribute):  # torch.cuda.NAME, written out
        edits = [Edit(inner - len("cuda"), inner, "npu")]
        if function in _RENAMED:
            end = file.span(part)[1]
            edits.append(Edit(end - len(function), end, _RENAMED[function]))
        return Text(f"torch.npu.{_RENAMED.get(function, function)}", (*imports, *edits))
    module = writing.device_module(file, goal)
    return Text(f"{module.text}.{function}", (*module.edits, file.replace(part.value, module.text)))


def _portable(part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
    torch = writing.torch_name(file)
    if function == "OutOfMemoryError":
        return _replaced(Text(f"{torch.text}.OutOfMemoryError", torch.edits), part, file)
    if _is_annotation(part, file):
        own = Text(f"{torch.text}.{function}", torch.edits)
        return _replaced(own, part, file) if function in ("Stream", "Event") else None
    if function in _SEEDS:
        return _seed(part, torch, file)
    if function in ("is_available", "device_count"):
        api = writing.accelerator(file, goal)
        return _replaced(Text(f"{api.text}.{function}", api.edits), part, file)
    if _of_memory(function) and function in names_of("accelerator", goal.torch):
        api = writing.accelerator(file, goal)
        new = Text(f"{api.text}.{function}", api.edits)
    else:
        module = writing.device_module(file, goal)
        new = Text(f"{module.text}.{function}" if function else module.text, module.edits)
    if not function or _cpu_has(function, goal) or writing.guarded(part, file):
        return _replaced(new, part, file)
    return _only_with_accelerator(new, part, file, goal)


def _of_memory(function: str) -> bool:
    return "memory_" in function or function == "empty_cache"


def _cpu_has(function: str, goal: Goal) -> bool:
    return function in (names_of("cpu", goal.torch) if goal.has_accelerator else compat.CPU_NAMES)


def _is_annotation(node: ast.AST, file: PythonFile) -> bool:
    child = node
    for parent in file.ancestors(node):
        if child is getattr(parent, "annotation", None) or child is getattr(parent, "returns", None):
            return True
        child = parent
    return False


def _replaced(new: Text, part: ast.expr, file: PythonFile) -> Text:
    return Text(new.text, (*new.edits, file.replace(part, new.text)))


def _seed(part: ast.expr, torch: Text, file: PythonFile) -> Text:
    """torch.manual_seed seeds all devices: where it is called with the same seed beside, ours is one too many."""
    new = _replaced(Text(f"{torch.text}.manual_seed", torch.edits), part, file)
    call = file.parent(part)
    statement = file.parent(call) if call else None
    if not isinstance(call, ast.Call) or not isinstance(statement, ast.Expr):
        return new
    block = next((b for b in _blocks(file.parent(statement)) if statement in b), [])
    same = [ast.dump(each) for each in call.args]
    for other in block:
        if isinstance(other, ast.Expr) and isinstance(other.value, ast.Call) and other is not statement:
            is_seed = file.resolve(other.value.func) == "torch.manual_seed"
            if is_seed and [ast.dump(each) for each in other.value.args] == same and file.alone_on_lines(statement):
                start, end = file.line_start(statement), file.line_end(statement)
                return Text("", (Edit(start, end, ""),))
    return new


def _blocks(parent: ast.AST | None) -> list[list[ast.stmt]]:
    return [block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(parent, name, None), list)]


def _only_with_accelerator(new: Text, part: ast.expr, file: PythonFile, goal: Goal) -> Text:
    """The CPU has no such function: guard a statement by an if, give a figure the value 0."""
    call = file.parent(part)
    api = writing.accelerator(file, goal)
    edits = (*api.edits, *new.edits, file.replace(part, new.text))
    if not isinstance(call, ast.Call) or call.func is not part:
        return Text(new.text, edits)
    statement = file.parent(call)
    if isinstance(statement, ast.Expr) and file.alone_on_lines(statement):
        indent = file.text[file.line_start(statement) : file.span(statement)[0]]
        unit = "\t" if indent.startswith("\t") else "    "
        guard = f"if {api.text}.is_available():{file.newline}{indent}{unit}"
        return Text(new.text, (*edits, file.insert(file.span(statement)[0], guard)))
    if "memory_" in new.text:
        start, end = file.span(call)
        nothing = '""' if new.text.endswith("summary") else "{}" if new.text.endswith("stats") else "0"
        alone = isinstance(statement, (ast.Call, ast.keyword, ast.Assign, ast.Return, ast.List, ast.Tuple, ast.Dict))
        opening, closing = ("", "") if alone else ("(", ")")
        choice = file.insert(end, f" if {api.text}.is_available() else {nothing}{closing}")
        edits = (*edits, file.insert(start, opening), choice) if opening else (*edits, choice)
    return Text(new.text, edits)
