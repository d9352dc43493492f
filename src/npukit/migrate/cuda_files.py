"""Decide whether a whole file is for CUDA only, by its name or folder or by what it cannot be imported without.

from flash_attn import flash_attn_func
pytestmark = pytest.mark.skipif(not HAVE_TE)
ours/triton/norm.py
"""

from __future__ import annotations

import ast
from pathlib import Path

from npukit.facts.libraries import needs_cuda
from npukit.migrate.definitions import SAYS_WITHOUT, cuda_only_names, is_test_or_benchmark
from npukit.migrate.evidence import Evidence
from npukit.migrate.kernels import (
    Definition,
    library_needed_by,
    needed_by_imports,
    only_checks_presence,
)
from npukit.migrate.presence import cuda_library_named, library_required_by, library_required_by_marks
from npukit.source import PythonFile, per_file
from npukit.source.modules import file_of


@per_file
def evidence_for_file(file: PythonFile) -> Evidence | None:
    """Return the evidence that a file as a whole is for CUDA only, or None."""
    root, path = file.names.root, file.path
    inside_root = path.relative_to(root) if root and path.is_relative_to(root) else Path(path.name)
    name = inside_root.with_suffix("").as_posix()
    parts = (*inside_root.with_suffix("").parts, name)
    library = next(filter(None, map(cuda_library_named, parts)), None)
    if library and library.verdict != "adapter" and not SAYS_WITHOUT.search(name):
        return Evidence("name", library.name, file.place(file.tree))
    for node in file.tree.body:
        library_name = library_required_by(node, file, asks_any=is_test_or_benchmark(file)) or _imported(node, file)
        if library_name:
            return Evidence("library", library_name, file.place(node))
    if launched := _launched(file):
        return Evidence("kernel", "Triton", file.place(launched))
    return None


def _imported(node: ast.stmt, file: PythonFile) -> str:
    """Return the CUDA library without which an import at the top fails, in tests also through other files."""
    if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "pytestmark":
        return library_required_by_marks([node.value], file)
    if not isinstance(node, (ast.Import, ast.ImportFrom)):
        return ""
    names = ", ".join(alias.name for alias in node.names) if isinstance(node, ast.ImportFrom) else ""
    module = (getattr(node, "module", None) or "") if isinstance(node, ast.ImportFrom) else node.names[0].name
    if only_checks_presence(module, names, file.text):
        return ""
    where = file_of("." * getattr(node, "level", 0) + module, file.path, file.names.root)
    parts = module.split(".")[1:] if where is None and not module.startswith("torch.") else []
    library = library_needed_by(node) or next(
        filter(None, map(needs_cuda, parts)), None
    )  # ours.triton, which is made elsewhere
    if library is None and where is not None and is_test_or_benchmark(file):
        library_name = needed_by_imports(where, file.names.root)
        return library_name if library_name != "Triton" else ""  # Triton kernels are checked one by one
    return library.name if library else ""


def _launched(file: PythonFile) -> ast.AST | None:
    """Return where a file launches a kernel of a file that cannot be imported without Triton: kernel[grid](x)"""
    if not file.has("]("):
        return None
    own = {statement.name for statement in file.tree.body if isinstance(statement, Definition)}
    of_kernels = [name for name, library in cuda_only_names(file).items() if library in ("Triton", "TileLang")]
    for name in of_kernels:
        for use in file.by_name.get(name, ()):
            taken = file.parent(use)
            is_launch = isinstance(taken, ast.Subscript) and taken.value is use
            if is_launch and isinstance(file.parent(taken), ast.Call) and name not in own:  # type: ignore[arg-type]
                return use
    return None
