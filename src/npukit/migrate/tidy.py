"""What a migration leaves to tidy: imports from torch.cuda without a use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.source import Document, Edit, PythonFile

_IMPORT = re.compile(r"from torch(?:\.cuda| import[^\n]*\bcuda\b)")


def without_unused_imports(before: Document, after: Document) -> Document:
    """The migrated file without imports from torch.cuda whose names were used before, and no longer are.

    >>> without_unused_imports(before, after)  # from torch.cuda import amp; amp.autocast() -> torch.amp.autocast(...)
    """
    if after.kind != "python" or after.path.name == "__init__.py":
        return after
    if "import torch.cuda" not in after.text and not _IMPORT.search(after.text):
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
    if len(gone) == len(node.names):
        whole: ast.stmt = node
        if isinstance(around, ast.If) and len(around.body) == 1:  # if half: from torch.cuda import amp
            if around.orelse or around in getattr(file.parent(around), "orelse", ()):
                return
            whole = around
        yield Edit(file.line_start(whole), file.line_end(whole) + _blank_below(whole, file), "")
    elif gone and isinstance(node, ast.ImportFrom):
        kept = ", ".join(file.source(alias) for alias in node.names if alias not in gone)
        start, end = file.span(node.names[0])[0], file.span(node.names[-1])[1]
        yield Edit(start, end, kept)


def _blank_below(statement: ast.stmt, file: PythonFile) -> int:
    """The length of an empty line below a condition that goes, where one is above it, too, or a block begins."""
    before, after = file.text[: file.line_start(statement)], file.text[file.line_end(statement) :]
    doubled = isinstance(statement, ast.If) and before.endswith(("\n\n", ":\n")) and after.startswith("\n")
    return 1 if doubled else 0
