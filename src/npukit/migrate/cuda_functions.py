"""Functions that only CUDA can run: they are named after FP8, or launch the Triton kernels of their own file.

stays:  def quantize_fp8(x): ...        def rotate(x): y = torch.empty(4, device="cuda"); _kernel[grid](x, y)
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.cuda_only import own_launchers
from npukit.source import PythonFile

_FP8 = re.compile(r"(?:^|_)(?:mx|nv)?fp[48](?:_|$)", re.IGNORECASE)
_Part = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def functions_for_cuda(file: PythonFile) -> Iterator[ast.AST]:
    """The functions, classes and methods of a file that only CUDA can run, and that say where they run."""
    launchers = own_launchers(file) if "triton" in file.text else frozenset[str]()
    for part in file.tree.body if launchers or _FP8.search(file.text) else ():
        inner = part.body if isinstance(part, ast.ClassDef) else []
        for each in (part, *inner):
            named = isinstance(each, _Part) and (each.name in launchers or _FP8.search(each.name))
            if named and "cuda" in file.source(each):
                yield each
