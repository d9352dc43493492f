"""Replace torch.set_default_tensor_type for CUDA tensors.

before:           torch.set_default_tensor_type("torch.cuda.FloatTensor")
after (npu):      torch.set_default_tensor_type("torch.npu.FloatTensor")
after (portable): torch.set_default_device(DEVICE)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import writing
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Phase, Rule
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK160",
    "default-tensor-type",
    words=("torch.cuda.",),
    fixes=True,
    phase=Phase.rewrite,
    why="CUDA tensor types do not exist on an NPU machine.",
    remedy="Set the default device and the dtype separately.",
    effort=Effort(15, 5),
)


@rule.on(ast.Constant)
def check(node: ast.Constant, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if not isinstance(node.value, str) or not node.value.startswith("torch.cuda.") or not node.value.endswith("Tensor"):
        return
    call = file.parent(node)
    if not isinstance(call, ast.Call) or writing.serves_npu_already(node, file):
        return
    is_default = file.resolve(call.func) == "torch.set_default_tensor_type"
    if not is_default and not (isinstance(call.func, ast.Attribute) and call.func.attr == "type"):
        return
    edits: tuple[Edit, ...] = ()
    if not goal.portable:
        at = file.span(node)[0] + file.source(node).index("cuda")
        edits = (*writing.import_torch_npu(file), Edit(at, at + len("cuda"), "npu"))
    elif is_default and node.value == "torch.cuda.FloatTensor":
        name = writing.device(file, goal)
        torch = writing.torch_name(file).text
        edits = (*name.edits, file.replace(call, f"{torch}.set_default_device({name.text})"))
    yield rule.finding((file, node), f"{node.value} is a CUDA tensor type", edits=edits)
