"""Replace strings that name a CUDA device.

before:           device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
after (npu):      device = torch.device("npu" if torch.npu.is_available() else "cpu")
after (portable): device = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")

Only strings that are used as a device are rewritten: arguments, defaults, options and variables. Dictionary keys, file
names, messages and members of enumerations stay as they are. A configuration that a framework reads names one device
for all machines: it is reported in the portable style.
"""

from __future__ import annotations

import ast
import re

from npukit.migrate.dataflow import DEVICE, flows_into, is_allowed_value
from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.styles import style_of
from npukit.migrate.styles.choices import is_chosen
from npukit.migrate.styles.strings import is_beside_cpu, is_device

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
_TAKES_NAMES = re.compile(
    r"assert|(?:get|set|has|del)attr$|(?:get|pop|setdefault|append|add|index|count|remove|find|split|strip|join|format)$"
    r"|(?:starts|ends)with$|removeprefix$|l?strip$|replace$|print$|log$|debug$|info$|warning$|write$|_apply$|create_proxy$"
    r"|call_method$|option$|add_argument$|group$|match$|search$|sub$|mark$|param$|parametrize$"
)
_UNCLEAR = "npukit cannot see where the string is used, so it did not change it."


@rule.on(ast.JoinedStr)
@rule.on(ast.Constant, says=("cuda",))
def check(node: ast.Constant | ast.JoinedStr, file: PythonFile, goal: Goal) -> Findings:
    if not _is_cuda(node) or isinstance(file.parent(node), ast.JoinedStr) or is_kept(node, file, goal):
        return
    if _is_compared(node, file):
        return
    if not flows_into(node, DEVICE, file) and not is_chosen(node, file):
        if isinstance(node, ast.Constant) and _may_be_device(node, file):
            what = f"{node.value!r} looks like a CUDA device"
            yield rule.finding((file, node), what, why=_UNCLEAR, severity=Severity.warning)
        return
    match = _LITERAL.fullmatch(file.source(node))
    edits: tuple[Edit, ...] = ()
    if match:
        edits = style_of(goal).device_string(node, match, file, goal)
        if is_allowed_value(node, file):
            edits = style_of(goal).choose(_choice(node, match, file), edits, file)
    yield rule.finding(
        (file, node),
        f"{file.source(node)[:40]} names a CUDA device",
        edits=edits,
    )


def _may_be_device(node: ast.Constant, file: PythonFile) -> bool:
    """Return whether a string that cannot be followed may be a device.

    It has a card's number, is in a list of devices, or is passed to a method that is not in sight:
    tensor.init_data("cuda")
    """
    around = file.parent(node)
    if node.value != "cuda":
        return str(node.value)[5:].isdigit() and not isinstance(around, (ast.Subscript, ast.Compare, ast.Dict))
    func = around.func if isinstance(around, ast.Call) and node in around.args else None
    if isinstance(func, ast.Attribute):
        return not _TAKES_NAMES.match(func.attr)
    return _is_in_list(node, file)


def _is_in_list(node: ast.Constant, file: PythonFile) -> bool:
    """Return whether a string is in a list of devices: parameterized.expand([("cpu",), ("cuda",)])"""
    table: ast.AST = node
    while isinstance(parent := file.parent(table), (ast.List, ast.Tuple)):
        table = parent
    return isinstance(parent, ast.Call) and is_beside_cpu(node, file) and "npu" not in file.source(table)


def _is_compared(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a device is part of a condition: device.type == torch.device("cuda").type"""
    call = file.parent(node)
    if not is_device(call, file) or getattr(node, "value", "") != "cuda":
        return False
    around = file.parent(call) if call else None
    return isinstance(file.parent(around) if isinstance(around, ast.Attribute) else around, ast.Compare)


def _is_cuda(node: ast.Constant | ast.JoinedStr) -> bool:
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
        return False
    return first.value == "cuda" or first.value.startswith("cuda:")


def _choice(node: ast.AST, match: re.Match[str], file: PythonFile) -> tuple[Edit, ...]:
    start, end = file.span(node)
    indent = file.text[file.text.rfind("\n", 0, start) + 1 : start]
    between = " " if indent.strip() or file.text[end : end + 1] != "," else file.newline + indent  # one in a line
    return (file.insert(end, f",{between}{match[2]}npu{match[2]}"),)
