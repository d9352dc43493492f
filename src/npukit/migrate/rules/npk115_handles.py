"""Read the handle of an NPU's stream or event.

before:       library.launch(stream.cuda_stream)
after (npu):  library.launch(stream.npu_stream)
"""

from __future__ import annotations

import ast

from npukit.migrate.decision import is_kept
from npukit.migrate.rule import Edit, Effort, Findings, Goal, PythonFile, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.npu import import_torch_npu

rule = Rule(
    "NPK115",
    "handles",
    words=("cuda_stream", "cuda_event"),
    fixes=True,
    why="The streams and events of torch_npu have no attribute of this name.",
    remedy="Read npu_stream or npu_event on NPUs, and check that what it is given to knows CANN's handles.",
    effort=Effort(30, 10),
)


@rule.on(ast.Attribute, says=("cuda_stream", "cuda_event"))
def check(node: ast.Attribute, file: PythonFile, goal: Goal) -> Findings:
    if not isinstance(node.ctx, ast.Load) or node.attr not in rule.words or is_kept(node, file, goal):
        return
    end = file.span(node)[1]
    renamed = Edit(end - len(node.attr), end - len(node.attr) + len("cuda"), "npu")
    edits = style_of(goal).choose((), (*import_torch_npu(file), renamed), file)
    yield rule.finding((file, node), f"{node.attr} is the handle of a CUDA {node.attr[5:]}", edits=edits)
