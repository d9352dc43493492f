"""Whether code stays as it is: it is for CUDA only, or serves NPUs already."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from npukit.migrate import guards
from npukit.migrate.goal import Goal
from npukit.migrate.styles import style_of
from npukit.source import PythonFile

_NPU = re.compile(r"ASCEND_|(?<![A-Za-z])npu(?![a-z])|hccl|transfer_to_npu", re.IGNORECASE)
_COMMENTED_OUT = re.compile(r"""#\s*["'](?:npu|hccl)["'],?\s*$""", re.MULTILINE)  # in a list: to be supported
_NPU_QUICKLY = re.compile(r"npu(?![a-z])(?<![a-z]npu)")  # in lower case; a search that starts with letters is quick
# Code that asks whether there are NPUs chooses among devices itself; neither style writes these names.
_CHOOSES_NPU = re.compile(r"\b(?:(?:is_)?(?:torch_|ascend_)?npu_available|(?:has|is|use)_npu)\b", re.IGNORECASE)


@lru_cache(maxsize=4)
def _speaks_of_npus(file: PythonFile) -> bool:
    lowered = file.text.lower()
    return "hccl" in lowered or "ascend_" in lowered or bool(_NPU_QUICKLY.search(lowered))


def stays(node: ast.AST, file: PythonFile, goal: Goal) -> bool:
    """Whether code stays as it is: it runs for CUDA only, or serves NPUs already."""
    if style_of(goal).keeps(node, file, goal):
        return True
    return guards.for_cuda_only(node, file) or _serves_npus(node, file)


def _serves_npus(node: ast.AST, file: PythonFile) -> bool:
    """Whether the code around the node (its function, else its statement or class) knows of NPUs, or its file asks for
    them."""
    if not _speaks_of_npus(file):
        return False
    around: ast.AST = file.function(node)
    if around is file.tree:
        around = node
        for parent in file.ancestors(node):
            if parent is file.tree:
                break
            around = parent
    if file.imports("torch_npu.contrib.transfer_to_npu") or _CHOOSES_NPU.search(file.text):
        return True
    start = min((file.span(each)[0] for each in getattr(around, "decorator_list", ())), default=file.span(around)[0])
    text = file.text[start : file.span(around)[1]]
    return bool(_NPU.search(text) and _NPU.search(_COMMENTED_OUT.sub("", text)))
