"""Replace CUDA's tensor types.

before:           x = x.type(torch.cuda.HalfTensor)
after (npu):      x = x.type(torch.npu.HalfTensor)
after (portable): x = x.to(torch.accelerator.current_accelerator(), torch.float16)

torch.set_default_tensor_type("torch.cuda.FloatTensor") becomes torch.set_default_device("npu") on NPUs. The default
device does not reach torch.Tensor(...), so the portable style keeps the default type for CUDA, in an `else`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.decision import stays
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.npu import import_torch_npu
from npukit.migrate.styles.style import torch_name
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK160",
    "default-tensor-type",
    words=("cuda",),
    fixes=True,
    why="CUDA tensor types do not exist on an NPU machine.",
    remedy="Set the default device and the dtype separately.",
    effort=Effort(15, 5),
)


_DTYPES = {"Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Double": "float64", "Long": "int64",
           "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}  # fmt: skip
_TYPE = re.compile(r"torch\.cuda\.(\w+)Tensor")


@rule.on_call(("set_default_tensor_type", "type"))
def check(call: ast.Call, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    """torch.set_default_tensor_type(TYPE) and x.type(TYPE), where TYPE is a string or a class."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return
    if len(call.args) != 1 or not (match := _type(call.args[0], file)) or stays(call, file, goal):
        return
    name = style_of(goal).device(call, file, goal)
    if func.attr != "type" and goal.portable:
        yield rule.finding((file, call), f"{match[0]} is a CUDA tensor type", edits=_beside(call, match[1], file))
        return
    edits = (*name.edits, *_by_device(call, func, match[1], name.text, file)) if name else ()
    if func.attr == "type":  # torch refuses torch.npu.FloatTensor as the default only
        at = file.span(call.args[0])[0] + file.source(call.args[0]).rindex("cuda")
        edits = style_of(goal).either(edits, (*import_torch_npu(file), Edit(at, at + len("cuda"), "npu")), file)
    yield rule.finding((file, call), f"{match[0]} is a CUDA tensor type", edits=edits)


def _type(node: ast.expr, file: PythonFile) -> re.Match[str] | None:
    name = node.value if isinstance(node, ast.Constant) else file.resolve(node)
    return _TYPE.fullmatch(name) if isinstance(name, str) else None


def _by_device(call: ast.Call, func: ast.Attribute, kind: str, device: str, file: PythonFile) -> tuple[Edit, ...]:
    torch = torch_name(file).text
    dtype = _DTYPES.get(kind)
    if func.attr == "type":
        return (file.replace(call, f"{file.source(func.value)}.to({device}, {torch}.{dtype})"),) if dtype else ()
    if kind == "Float":
        return (file.replace(call, f"{torch}.set_default_device({device})"),)
    statement = file.parent(call)
    if not dtype or not isinstance(statement, ast.Expr) or not file.alone_on_lines(statement):
        return ()
    indent = file.text[file.line_start(statement) : file.span(statement)[0]]
    second = f"{file.newline}{indent}{torch}.set_default_dtype({torch}.{dtype})"
    return (file.replace(call, f"{torch}.set_default_device({device}){second}"),)


def _beside(call: ast.Call, kind: str, file: PythonFile) -> tuple[Edit, ...]:
    """The default device for NPUs, and the default type for CUDA as it was."""
    statement, dtype, torch = file.parent(call), _DTYPES.get(kind), torch_name(file)
    if not dtype or not isinstance(statement, ast.Expr) or not file.alone_on_lines(statement):
        return ()
    if statement.end_lineno != statement.lineno:
        return ()
    indent = file.text[file.line_start(statement) : file.span(statement)[0]]
    inner = f"{indent}    "
    of_npu = [f'{torch.text}.set_default_device("npu")']
    if kind != "Float":
        of_npu.append(f"{torch.text}.set_default_dtype({torch.text}.{dtype})")
    lines = [f'if hasattr({torch.text}, "npu"):', *(f"{inner}{line}" for line in of_npu), f"{indent}else:", inner]
    return (*torch.edits, file.insert(file.span(call)[0], file.newline.join(lines)))
