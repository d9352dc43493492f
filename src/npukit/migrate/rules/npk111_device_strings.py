"""Replace strings that name a CUDA device.

before:           device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
after (npu):      device = torch.device("npu" if torch.npu.is_available() else "cpu")
after (portable): device = torch.device(torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu")

Only strings that are used as a device are rewritten: arguments, defaults, options and variables. Dictionary keys, file
names, messages and members of enumerations stay as they are.
"""  # noqa: E501

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.migrate.sinks import DEVICE, reaches
from npukit.report import Finding, Severity
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK111",
    "device-strings",
    words=("cuda",),
    fixes=True,
    phase=Phase.rewrite,
    why="No CUDA device exists on an NPU machine.",
    remedy="Use the type of the accelerator.",
    effort=Effort(15, 5),
)

_LITERAL = re.compile(r"""([rRuUfF]*)("{3}|'{3}|"|')(cuda)((?::(?:(?!\2)[^\\])*)?)\2""")
_OTHERS = re.compile(r"[\"'](?:xpu|hpu|mps|musa|mlu)[\"']")
_CUDA = re.compile(r"(?<![\w.])cuda(?=[\"':])")
_NUMBERED = re.compile(r"cuda:\d+")
_UNCLEAR = "npukit cannot see where the string is used, so it did not change it."


@rule.on(ast.Constant, ast.JoinedStr)
def check(node: ast.Constant | ast.JoinedStr, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not _is_cuda(node) or isinstance(file.parent(node), ast.JoinedStr) or writing.serves_npu_already(node, file):
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
        if isinstance(node, ast.Constant) and _NUMBERED.fullmatch(str(node.value)) and not _is_key(node, file):
            yield rule.finding(
                (file, node), f"{node.value!r} looks like a CUDA device", why=_UNCLEAR, severity=Severity.warning
            )
        return
    match = _LITERAL.fullmatch(file.source(node))
    edits: tuple[Edit, ...] = ()
    if match:
        edits = _choice(node, match, file) if goal.portable and _is_choice(node, file) else ()
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


def _is_key(node: ast.Constant, file: PythonFile) -> bool:
    parent = file.parent(node)
    return isinstance(parent, (ast.Subscript, ast.Compare)) or (isinstance(parent, ast.Dict) and node in parent.keys)


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
    whole = call if not rest and _is_only_argument_of_device(call, file) else None
    api = _idiom(whole or node, file, goal)
    kind = writing.device_type(file, goal)
    if api is not None:
        kind = writing.Text(f"{api.text}.current_accelerator().type", api.edits)
    if whole is not None:
        return (*kind.edits, file.replace(whole, kind.text.removesuffix(".type")))
    if not rest:
        return (*kind.edits, file.replace(node, kind.text))
    if isinstance(file.parent(node), ast.Attribute):  # "cuda:{}".format(i)
        return (*kind.edits, file.replace(node, f"({kind.text} + {quote}{rest}{quote})"))
    start, _ = file.span(node)
    marks = [] if "f" in prefix.lower() else [file.insert(start, "f")]
    return (*kind.edits, *marks, Edit(start + match.start(3), start + match.end(3), f"{{{kind.text}}}"))


def _is_only_argument_of_device(call: ast.AST | None, file: PythonFile) -> bool:
    if not isinstance(call, ast.Call) or file.resolve(call.func) != "torch.device":
        return False
    return len(call.args) == 1 and not call.keywords


def _idiom(node: ast.AST, file: PythonFile, goal: Goal) -> writing.Text | None:
    """`"cuda" if torch.cuda.is_available() else "cpu"`: ask torch.accelerator, as the condition will."""
    parent = file.parent(node)
    if not isinstance(parent, ast.IfExp) or parent.body is not node or not isinstance(parent.test, ast.Call):
        return None
    return writing.accelerator(file, goal) if file.resolve(parent.test.func) == "torch.cuda.is_available" else None


def _is_choice(node: ast.AST, file: PythonFile) -> bool:
    """Whether the string is one of an option's choices, or of several accelerators."""
    around = file.parent(node)
    keyword = file.parent(around) if isinstance(around, (ast.List, ast.Tuple, ast.Set)) else None
    if isinstance(around, (ast.List, ast.Tuple, ast.Set)) and _OTHERS.search(file.source(around)):
        return True
    return isinstance(keyword, ast.keyword) and keyword.arg == "choices"


def _choice(node: ast.AST, match: re.Match[str], file: PythonFile) -> tuple[Edit, ...]:
    return (file.insert(file.span(node)[1], f", {match[2]}npu{match[2]}"),)
