"""Replace strings that name a CUDA device.

before:           device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
after (npu):      device = torch.device("npu" if torch.npu.is_available() else "cpu")
after (portable): device = torch.device(DEVICE.type if ACCELERATOR.is_available() else "cpu")

Only strings that are used as a device are rewritten: arguments, defaults, options and variables. Dictionary keys, file
names, messages and members of enumerations stay as they are. A configuration that a framework reads names one device
for all machines: it is reported in the portable style.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate import torch_imports, writing
from npukit.migrate.callees import looks_up_module, takes_device
from npukit.migrate.cuda_only import ABOUT_THE_CARD
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.sinks import DEVICE, is_choice, reaches
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK111",
    "device-strings",
    words=("cuda",),
    fixes=True,
    why="No CUDA device exists on an NPU machine.",
    remedy='Write "npu", or keep the type in one variable: "npu" if hasattr(torch, "npu") else "cuda".',
    effort=Effort(15, 5),
)

_LITERAL = re.compile(r"""([rRuUfF]*)("{3}|'{3}|"|')(cuda)((?:[:{](?:(?!\2)[^\\])*)?)\2""")
_CUDA = re.compile(r"(?<![\w.])cuda(?=[\"':])")
_NUMBERED = re.compile(r"cuda:\d+")
_TAKES_NAMES = re.compile(
    r"assert|(?:get|set|has|del)attr$|(?:get|pop|setdefault|append|add|index|count|remove|find|split|strip|join|format)$"
    r"|(?:starts|ends)with$|removeprefix$|l?strip$|replace$|print$|log$|debug$|info$|warning$|write$|_apply$|create_proxy$"
    r"|call_method$|option$|add_argument$|group$|match$|search$|sub$|mark$|param$|parametrize$"
)
_UNCLEAR = "npukit cannot see where the string is used, so it did not change it."


@rule.on(ast.JoinedStr)
@rule.on(ast.Constant, says=("cuda",))
def check(node: ast.Constant | ast.JoinedStr, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not _is_cuda(node) or isinstance(file.parent(node), ast.JoinedStr) or writing.stays(node, file, goal):
        return
    if (
        _is_asked_about(node, file)
        or _is_compared(node, file)
        or (goal.portable and _is_current_card_moved_to(node, file))
    ):
        return
    pair = _pair_of_map_location(node, file)
    if pair is not None:
        twin = ": ".join(_CUDA.sub("npu", file.source(each)) for each in pair)
        yield rule.finding(
            (file, node),
            f"{file.source(node)[:40]} is a device that a checkpoint was saved on",
            why="A checkpoint saved on an NPU names an NPU, and would not be mapped.",
            remedy="Map both devices.",
            edits=[file.insert(file.span(pair[0])[0], f"{twin}, ")],
        )
        return
    if not reaches(node, DEVICE, file):
        if isinstance(node, ast.Constant) and _may_be_device(node, file):
            yield rule.finding(
                (file, node), f"{node.value!r} looks like a CUDA device", why=_UNCLEAR, severity=Severity.warning
            )
        return
    match = _LITERAL.fullmatch(file.source(node))
    edits: tuple[Edit, ...] = ()
    if match:
        edits = _choice(node, match, file) if goal.portable and is_choice(node, file) else ()
        edits = edits or (_portable if goal.portable else _npu)(node, match, file, goal)
    yield rule.finding(
        (file, node),
        f"{file.source(node)[:40]} names a CUDA device",
        remedy="Use the type of the accelerator." if goal.portable else 'Use "npu".',
        edits=edits,
    )


def _pair_of_map_location(node: ast.expr, file: PythonFile) -> tuple[ast.expr, ast.expr] | None:
    """The key and the value of {"cuda:0": "cuda:1"} that the node is the key of, where they map a checkpoint."""
    key: ast.AST = node
    while isinstance(parent := file.parent(key), (ast.BinOp, ast.Attribute, ast.Call)):  # "cuda:%d" % i
        key = parent
    if not isinstance(parent, ast.Dict) or key not in parent.keys or not reaches(parent, DEVICE, file):
        return None
    value = parent.values[parent.keys.index(key)]
    return (key, value) if "cuda" in file.source(value) else None


def _may_be_device(node: ast.Constant, file: PythonFile) -> bool:
    """x = "cuda:0"; or an argument of a method that cannot be found: tensor.init_data("cuda"); or of a function that
    looks up torch's module: module_of(device or "cuda")"""
    if _NUMBERED.fullmatch(str(node.value)):
        return not _is_key(node, file)
    call = file.parent(node)
    if isinstance(call, ast.BoolOp):
        call = file.parent(call)
        return isinstance(call, ast.Call) and looks_up_module(call.func, file)
    func = call.func if isinstance(call, ast.Call) and node in call.args else None
    return func is not None and (
        not _TAKES_NAMES.match(func.attr) if isinstance(func, ast.Attribute) else looks_up_module(func, file)
    )


def _is_key(node: ast.Constant, file: PythonFile) -> bool:
    parent = file.parent(node)
    return isinstance(parent, (ast.Subscript, ast.Compare)) or (isinstance(parent, ast.Dict) and node in parent.keys)


def _is_compared(node: ast.AST, file: PythonFile) -> bool:
    """device.type == torch.device("cuda").type, which is a condition."""
    call = file.parent(node)
    if not _is_only_argument_of_device(call, file) or getattr(node, "value", "") != "cuda":
        return False
    around = file.parent(call) if call else None
    return isinstance(file.parent(around) if isinstance(around, ast.Attribute) else around, ast.Compare)


def _is_asked_about(node: ast.AST, file: PythonFile) -> bool:
    """torch.cuda.get_device_properties("cuda:0").major, which stays as a whole"""
    if not ("get_device_properties" in file.by_name or "get_device_capability" in file.by_name):
        return False
    for call in file.ancestors(node):
        name = file.resolve(call.func) if isinstance(call, ast.Call) else None
        if name == "torch.cuda.get_device_capability":
            return True
        if name == "torch.cuda.get_device_properties":
            return getattr(file.parent(call), "attr", "") in ABOUT_THE_CARD
        if isinstance(call, ast.stmt):
            break
    return False


def _is_current_card_moved_to(node: ast.AST, file: PythonFile) -> bool:
    """x.cuda(f"cuda:{torch.cuda.current_device()}"): for NPK110."""
    call = file.parent(node)
    moves = isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "cuda"
    return moves and isinstance(node, ast.JoinedStr) and "current_device()" in file.source(node)


def _is_cuda(node: ast.Constant | ast.JoinedStr) -> bool:
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    return first.value == "cuda" or first.value.startswith("cuda:")


def _npu(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    start = file.span(node)[0]
    return (*writing.import_torch_npu(file), Edit(start + match.start(3), start + match.end(3), "npu"))


def _portable(node: ast.AST, match: re.Match[str], file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    prefix, quote, _, rest = match.groups()
    call = file.parent(node)
    if not rest and _is_only_argument_of_device(call, file):
        name = writing.device(node, file, goal)
        return (*name.edits, file.replace(call, name.text)) if name and call else ()
    if not rest and torch_imports.written_at_top(node, file) and takes_device(node, file):
        name = writing.device(node, file, goal)
        return (*name.edits, file.replace(node, name.text)) if name else ()
    of_card = not rest and (_is_beside_cpu(node, file) or _is_for_autocast(node, file))
    kind = writing.device_type(node, file, goal, of_card=of_card)
    if kind is None:
        return ()
    if not rest:
        return (*kind.edits, file.replace(node, kind.text))
    filled = _filled(node, kind.text, quote, rest, file)
    if filled:
        return (*kind.edits, *filled)
    start, _ = file.span(node)
    marks = [] if "f" in prefix.lower() else [file.insert(start, "f")]
    return (*kind.edits, *marks, Edit(start + match.start(3), start + match.end(3), f"{{{kind.text}}}"))


def _is_for_autocast(node: ast.AST, file: PythonFile) -> bool:
    """torch.autocast("cuda"), GradScaler(device="cuda"), which turn themselves off without CUDA"""
    parent = file.parent(node)
    call = file.parent(parent) if isinstance(parent, ast.keyword) else parent
    func = call.func if isinstance(call, ast.Call) else None
    values = [each.value for each in file.bindings(func)] if isinstance(func, ast.Name) else []
    chosen = [part for each in values if isinstance(each, ast.IfExp) for part in (each.body, each.orelse)]
    names = [file.resolve(each) or "" for each in (func, *chosen) if each is not None]
    return any(name == "torch.autocast" or name.startswith("torch.amp.") for name in names)


def _is_beside_cpu(node: ast.AST, file: PythonFile) -> bool:
    """["cpu", "cuda"], [("cpu", 1), ("cuda", 2)]: of two devices, one after the other"""
    around = file.parent(node)
    rows = file.parent(around) if isinstance(around, (ast.Tuple, ast.Call)) else None
    found = rows if isinstance(rows, (ast.List, ast.Tuple)) else around
    is_chosen = found is not None and isinstance(file.parent(found), ast.Subscript)  # ["cpu", "cuda"][on_card]
    parts = found.elts if isinstance(found, (ast.List, ast.Tuple)) and not is_chosen else []
    words = (each for part in parts for each in (part, *getattr(part, "elts", ()), *getattr(part, "args", ())))
    return any(isinstance(each, ast.Constant) and each.value == "cpu" for each in words)


def _filled(node: ast.AST, kind: str, quote: str, rest: str, file: PythonFile) -> tuple[Edit, ...]:
    """One more value for a string that is filled in: "cuda:{}".format(i), "cuda:%d" % i, "cuda:" + i."""
    parent = file.parent(node)
    if isinstance(parent, ast.Attribute):
        call = file.parent(parent)
        if not isinstance(call, ast.Call) or re.search(r"\{[^}:!]", rest) or not call.args:
            return (file.replace(node, f"({kind} + {quote}{rest}{quote})"),)
        return file.replace(node, f"{quote}{{}}{rest}{quote}"), file.insert(file.span(call.args[0])[0], f"{kind}, ")
    if isinstance(parent, ast.BinOp) and parent.left is node and isinstance(parent.op, ast.Mod):
        start, end = file.span(parent.right)
        new = file.replace(node, f"{quote}%s{rest}{quote}")
        if isinstance(parent.right, ast.Tuple):
            return new, file.insert(file.text.index("(", file.span(node)[1]) + 1, f"{kind}, ")
        return new, file.insert(start, f"({kind}, "), file.insert(end, ")")
    if isinstance(parent, ast.BinOp) and parent.left is node:
        return (file.replace(node, f"{kind} + {quote}{rest}{quote}"),)
    return ()


def _is_only_argument_of_device(call: ast.AST | None, file: PythonFile) -> bool:
    if not isinstance(call, ast.Call) or file.resolve(call.func) != "torch.device":
        return False
    return len(call.args) == 1 and not call.keywords


def _choice(node: ast.AST, match: re.Match[str], file: PythonFile) -> tuple[Edit, ...]:
    start, end = file.span(node)
    indent = file.text[file.text.rfind("\n", 0, start) + 1 : start]
    between = " " if indent.strip() or file.text[end : end + 1] != "," else file.newline + indent  # one in a line
    return (file.insert(end, f",{between}{match[2]}npu{match[2]}"),)
