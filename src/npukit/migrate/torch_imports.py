"""Imports of torch: whether a file loads torch and by which name its code can use it, where an import or a constant
that needs torch goes, and which imports from torch.cuda are no longer used.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from npukit.source import Document, Edit, PythonFile, per_file
from npukit.source.cache import per_project
from npukit.source.modules import file_of, text_of

_BUILT_ON_TORCH = re.compile(
    r"(?:torch\w*|pytorch_\w+|lightning\w*|accelerate|basicsr|bitsandbytes|deepspeed|detectron2|diffusers|fairseq|fairscale"
    r"|fastai|ignite|kornia|mmcv|monai|open_clip|peft|sentence_transformers|timm|transformers|trl|vllm)(?:\.|$)"
)
_AT_START_OF_LINE = re.compile(r"^(?:from[ \t]+([.\w]+)|import[ \t]+([\w.]+))", re.MULTILINE)
_FRAMEWORK = re.compile(r"(?:mmengine|mmcv|detectron2\.config)(?:\.|$)")
_OTHER_FRAMEWORKS = frozenset(("jittor", "mindspore", "mxnet", "oneflow", "paddle"))
_DEPTH = 3  # of imports between the project's modules
_CHANGES = re.compile(r"cuda|nccl|gpu|device|\.to\(", re.IGNORECASE)
_CUDA = re.compile(r"\bcuda\b")
_IMPORT = (ast.Import, ast.ImportFrom)
_QUIET = (*_IMPORT, ast.Assign, ast.Pass, ast.Raise, ast.Expr, ast.ExceptHandler, ast.Try, ast.If)
_DEFINITION = (ast.FunctionDef, ast.ClassDef)
_FEW = 3  # more statements than this between imports are the program itself
_FROM_CUDA = re.compile(r"from torch(?:\.cuda| import[^\n]*\bcuda\b)")


@per_file
def at_top(file: PythonFile) -> str | None:
    """Return the name that `import torch` at the top of the file gives to torch.

    >>> at_top(PythonFile(Path("a.py"), "import torch as th"))
    'th'
    """
    for node in file.tree.body:
        if _uses_devices(node, file):
            return None
        for alias in node.names if isinstance(node, ast.Import) else ():
            if alias.name == "torch" or (alias.name.startswith("torch.") and not alias.asname):
                return alias.asname or "torch"
    return None


def _uses_devices(node: ast.stmt, file: PythonFile) -> bool:
    """Return whether a migration may use torch in a statement. In notebooks it may precede the import."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.Try)) or _is_text(node):
        return False
    text = file.source(node)
    return any(word in text for word in ("cuda", "nccl")) and "import torch" not in text


@per_file
def loads_torch(file: PythonFile) -> bool:
    """Return whether a file loads torch, by its own imports or by those of project files that it imports.

    A file that moves tensors works with torch even if it never names it. Configurations that a framework reads do not
    load it, and neither do files that leave torch to their functions.
    """
    if is_configuration(file):
        return False
    if at_top(file):
        return True
    modules = [name for node in file.tree.body for name in _modules(node)]
    if any(_brings_torch(module, file.path, file.names.root, _DEPTH) for module in modules):
        return True
    return ".cuda(" in file.text and not any(name.split(".")[0] == "torch" for name in file.imported)


@per_file
def is_of_another_framework(file: PythonFile) -> bool:
    """Return whether a file computes with another framework, whose tensors may have a `cuda` method as well.

    >>> is_of_another_framework(PythonFile(Path("a.py"), "import paddle\nx.cuda()"))
    True
    """
    top = {name.split(".")[0] for name in file.imported}
    return "torch" not in top and not top.isdisjoint(_OTHER_FRAMEWORKS)


@per_file
def is_configuration(file: PythonFile) -> bool:
    """Return whether a file is a configuration: only imports and values, and in a fitting folder."""
    acts = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Expr, ast.Try, ast.While)
    if any(isinstance(node, acts) and not _is_text(node) for node in file.tree.body):
        return False
    if any(part.startswith("config") for part in (*file.path.parent.parts, file.path.name)):
        return True
    return any(_FRAMEWORK.match(name) for node in file.tree.body for name in _modules(node))


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def written_at_top(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a node can use a constant at the top of the file, which imports torch there."""
    if not loads_torch(file):
        return False
    statement = None if at_top(file) else nearest(node, file)[1]
    return statement is None or file.function(statement) is file.tree


@per_file
def insertion(file: PythonFile) -> tuple[int, str]:
    """Return where to insert `import torch`, and the line to insert.

    It goes next to the first import from torch, else among third-party imports, else in a block of its own.
    """
    last: ast.stmt | None = None
    of_others: ast.stmt | None = None
    for node in file.tree.body:
        if _uses_devices(node, file):
            if file.path.suffix == ".ipynb" and last is None:
                return file.line_start(node), "import torch"
            break
        for name in _modules(node):
            if name.split(".")[0] == "torch":
                return _among(node, file), "import torch"
            if not name.startswith(".") and file_of(name, file.path, file.names.root) is None:
                last = node
                of_others = of_others if name.split(".")[0] in sys.stdlib_module_names else node
    last = of_others if file.path.suffix == ".py" and of_others else last
    if last is not None:
        return _among(last, file), f"{file.newline if _is_block_of_python(last, file) else ''}import torch"
    first = next((node for node in file.tree.body if _modules(node)), None)
    if first is None or file.path.suffix == ".ipynb":
        return file.end_of_imports(), "import torch"
    return file.line_start(first), f"import torch{file.newline}"


def _is_block_of_python(last: ast.stmt, file: PythonFile) -> bool:
    """Return whether a block of imports contains only the standard library and ends with a blank line."""
    block = _lines_of_imports(last, file)
    own = all(name.split(".")[0] in sys.stdlib_module_names for node in block for name in _modules(node))
    below = file.text[file.line_end(last) :]
    return own and below.startswith(("\n", "\r\n")) and file.path.suffix != ".ipynb"


def _among(last: ast.stmt, file: PythonFile) -> int:
    """Return where `import torch` goes in a block of imports: by name if they are sorted, else at an end."""
    block = _lines_of_imports(last, file)
    plain = [node for node in block if isinstance(node, ast.Import)]
    names = [node.names[0].name.lower() for node in plain]
    sorts = block[: len(plain)] == plain and names == sorted(names)
    apart = not any(name.split(".")[0] in sys.stdlib_module_names for node in block for name in _modules(node))
    if not (sorts and apart) or file.path.suffix == ".ipynb":
        return file.line_start(last) if _modules(last)[0].split(".")[0] == "torch" else file.line_end(last)
    above = [node for node, name in zip(plain, names, strict=True) if name < "torch"]
    return file.line_end(above[-1]) if above else file.line_start(block[0])


def _lines_of_imports(last: ast.stmt, file: PythonFile) -> list[ast.stmt]:
    """Return an import together with those on the lines directly above it."""
    block = [last]
    for node in reversed(file.tree.body[: file.tree.body.index(last)]):
        if _modules(node) in ([], ["__future__"]) or (node.end_lineno or 0) + 1 != block[0].lineno:
            break
        block.insert(0, node)
    return block


def _modules(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []


def _brings_torch(module: str, path: Path, root: Path | None, depth: int) -> bool:
    if _BUILT_ON_TORCH.match(module):
        return True
    file = file_of(module, path, root) if depth else None
    return file is not None and _loads(file, root, depth - 1)


@per_project(maxsize=4096)
def _loads(file: Path, root: Path | None, depth: int) -> bool:
    """Return whether another file of the project loads torch, judging by the imports at the start of its lines."""
    return any(_brings_torch(a or b, file, root, depth) for a, b in _AT_START_OF_LINE.findall(text_of(file)))


def nearest(node: ast.AST, file: PythonFile) -> tuple[str | None, ast.AST | None]:
    """Return the name of torch at a node if a function or condition imports it, with that import.

    >>> nearest(call, file)[0]  # def f(): import torch; torch.cuda.synchronize()
    'torch'
    """
    for scope in (*_scopes(node, file), file.tree):
        for name in ("torch", "th"):
            imports = [binding.node for binding in file.names.bindings_in(scope, name) if binding.target == "torch"]
            if done := [statement for statement in imports if not _is_for_types(statement, file)]:
                return name, done[0]
    return None, None


def _scopes(node: ast.AST, file: PythonFile) -> Iterator[ast.AST]:
    """Yield what is around a node. A node in a default or decorator is not inside that function."""
    child = node
    for parent in file.ancestors(node):
        if not isinstance(parent, ast.FunctionDef) or child in parent.body:
            yield parent
        child = parent


def _is_for_types(node: ast.AST, file: PythonFile) -> bool:
    """Return whether an import is under `if TYPE_CHECKING` and therefore never runs."""
    parent = file.parent(node)
    return isinstance(parent, ast.If) and "TYPE_CHECKING" in file.source(parent.test)


def below_torch(file: PythonFile) -> int:
    """Return the offset below the block of imports that contains torch's import.

    Conditional imports belong to the block, and so does what prepares imports, such as changes to sys.path or a logger.
    """
    end = _start_of_torch(file) if at_top(file) else insertion(file)[0]
    is_notebook, between = file.path.suffix == ".ipynb", 0
    for node in file.tree.body:
        if file.line_start(node) < end:
            continue
        if isinstance(node, _IMPORT) or (not is_notebook and _imports(node, file)):
            end, between = (end if _defines(node) else file.line_end(node)), 0
        elif is_notebook or not _prepares(node, file):
            break
        else:
            between += isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if between > _FEW:
                break
    return end


def _start_of_torch(file: PythonFile) -> int:
    for node in file.tree.body:
        if isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "torch" for alias in node.names):
            return file.line_start(node)
    return 0


def _imports(node: ast.stmt, file: PythonFile) -> bool:
    """Return whether an `if` or `try` does little but import."""
    if not isinstance(node, (ast.Try, ast.If)) or (isinstance(node, ast.If) and _may_change(node.test, file)):
        return False
    parts = [statement for field in ("body", "orelse", "finalbody") for statement in getattr(node, field, ())]
    parts += [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
    has_import = any(isinstance(inner, _IMPORT) for inner in ast.walk(node))
    return has_import and all(_imports(part, file) or _is_quiet(part, file) for part in parts)


def _is_quiet(node: ast.stmt, file: PythonFile) -> bool:
    if isinstance(node, _IMPORT):
        return not _CUDA.search(file.source(node))
    return isinstance(node, (*_QUIET, *_DEFINITION)) and not _may_change(node, file)


def _defines(node: ast.stmt) -> bool:
    """Return whether a statement defines a substitute for a missing name, which belongs to the imports."""
    return any(isinstance(inner, _DEFINITION) for inner in ast.walk(node))


def _prepares(node: ast.stmt, file: PythonFile) -> bool:
    """Return whether a statement among imports is a setting or a call that no migration may change."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _names_torch(node.value, file):
        return False
    return isinstance(node, (ast.Assign, ast.Expr)) and not _may_change(node, file)


def _names_torch(value: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is made by torch, such as `scaler = GradScaler()`, which gets a device."""
    names = (file.resolve(node) for node in ast.walk(value) if isinstance(node, (ast.Name, ast.Attribute)))
    return any(name and name.split(".")[0] in ("torch", "apex") for name in names)


def _may_change(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a migration may change a node. Numbers and booleans never change: HAS_CUDA_KERNELS = False"""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and not isinstance(node.value.value, str):
        return False
    return bool(_CHANGES.search(file.source(node)))


def remove_unused_imports(before: Document, after: Document) -> Document:
    """Return the migrated file without imports from torch.cuda whose names were used before and no longer are.

    >>> remove_unused_imports(before, after)  # from torch.cuda import amp; amp.autocast() -> torch.amp.autocast(...)
    """
    if after.kind != "python" or after.path.name == "__init__.py":
        return after
    if "import torch.cuda" not in after.text and not _FROM_CUDA.search(after.text):
        return after
    old, new = before.python, after.python
    if old is None or new is None:
        return after
    unused = old.names.read - new.names.read
    edits = [edit for node in new.names.imports for edit in _removed(node, unused, new)]
    return after.edited(edits) if edits else after


def _removed(node: ast.Import | ast.ImportFrom, unused: frozenset[str], file: PythonFile) -> Iterator[Edit]:
    around = file.parent(node)
    if not file.alone_on_lines(node) or "#" in file.source(node) or isinstance(around, ast.Try):
        return
    prefix = f"{node.module}." if isinstance(node, ast.ImportFrom) and not node.level else ""
    gone = [
        alias
        for alias in node.names
        if f"{prefix}{alias.name}".startswith("torch.cuda") and (alias.asname or alias.name) in unused
    ]
    if len(gone) == len(node.names) and len(getattr(around, "body", ())) > 1:
        yield Edit(file.line_start(node), file.line_end(node), "")
