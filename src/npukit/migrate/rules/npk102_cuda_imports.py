"""Import from torch.npu instead of torch.cuda.

before:       from torch.cuda import synchronize
after (npu):  from torch.npu import synchronize

In the portable style the uses are rewritten instead of the import, since torch.cuda can be imported everywhere. The
npu style does the same if torch.npu lacks one of the imported names.
"""

from __future__ import annotations

import ast

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.npu import goes_over, import_torch_npu

rule = Rule(
    "NPK102",
    "cuda-imports",
    words=("cuda",),
    fixes=True,
    why="The imported functions require a CUDA device.",
    remedy="Import the same names from torch.npu, or call them through torch.get_device_module(device).",
    effort=Effort(15, 5),
)


@rule.on(ast.ImportFrom)
def check(node: ast.ImportFrom, file: PythonFile, goal: Goal) -> Findings:
    is_ours = style_of(goal).imports_from_npu and not node.level and node.module == "torch.cuda"
    if not is_ours or is_kept(node, file, goal) or not goes_over(node, goal):
        return
    start = file.span(node)[0]
    at = file.text.index("torch.cuda", start) + len("torch.")
    yield rule.finding(
        (file, node),
        "imports from torch.cuda",
        edits=(*import_torch_npu(file), Edit(at, at + len("cuda"), "npu")),
    )
