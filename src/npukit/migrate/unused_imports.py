"""Clean up after a migration: remove imports from torch.cuda that are no longer used."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.source import Document, Edit, PythonFile

_IMPORT = re.compile(r"from torch(?:\.cuda| import[^\n]*\bcuda\b)")


def remove_unused_imports(before: Document, after: Document) -> Document:
    """Return the migrated file without imports from torch.cuda whose names were used before and no longer are.

    >>> remove_unused_imports(before, after)  # from torch.cuda import amp; amp.autocast() -> torch.amp.autocast(...)
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
    if len(gone) == len(node.names) and len(getattr(around, "body", ())) > 1:
        yield Edit(file.line_start(node), file.line_end(node), "")
