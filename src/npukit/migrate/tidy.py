"""What a migration leaves to tidy: imports from torch.cuda without a use, no empty line below its constants, and the
same choice of a backend in many places."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.callees import takes_device
from npukit.source import Document, Edit, PythonFile

_IMPORT = re.compile(r"from torch(?:\.cuda| import[^\n]*\bcuda\b)")
_FROM_AMP = re.compile(r"^from torch\.cuda\.amp import (\w+(?:, \w+)*)$", re.MULTILINE)
_BACKEND = re.compile(r"""(["'])hccl\1 if (\w+)\.type == (["'])npu\3 else (["'])nccl\4""")
_FEW = 2  # places
_CONSTANT = r"(?:TORCH_)?(?:DEVICE|ACCELERATOR|DEVICE_TYPE|BACKEND) = "
_CONSTANTS = re.compile(rf"\n(?:{_CONSTANT}[^\n]*[\"']npu[\"'][^\n]*\n)+(?=[^\r\n])(?!SCALER = |{_CONSTANT})")


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


def with_space_below_constants(before: Document, after: Document) -> Document:
    """The migrated file with an empty line between the constants that were added and the code below them.

    >>> with_space_below_constants(before, after).text
    """
    ends = [match.end() for match in _CONSTANTS.finditer(after.code) if match[0] not in before.code]
    edits = [Edit(end, end, "\n") for end in ends if not _ends_cell(after, end)]
    return after.edited(edits) if edits else after


def with_names_of_amp(before: Document, after: Document) -> Document:
    """The migrated file with the names that it imported from torch.cuda.amp set once, so that their uses stay.

    >>> with_names_of_amp(before, after)  # custom_bwd, custom_fwd = ACCELERATOR.amp.custom_bwd, ...
    """
    imported = _FROM_AMP.search(before.text) if "ACCELERATOR.amp.custom_" in after.text else None
    file = after.python if imported and after.book is None else None
    if imported is None or file is None:
        return after
    uses: dict[str, list[ast.Attribute]] = {}
    for name in imported[1].split(", "):
        found = file.by_name.get(name, [])
        written = [
            each for each in found if isinstance(each, ast.Attribute) and getattr(each.value, "attr", "") == "amp"
        ]
        if written and len(written) == len(found):  # others are still imported
            uses[name] = written
    nodes = [node for written in uses.values() for node in written]
    if len(nodes) < 2:
        return after
    accelerator = file.source(nodes[0]).partition(".")[0]
    constant = file.statement(file.by_name[accelerator][0])
    line = f"{', '.join(uses)} = {', '.join(f'{accelerator}.amp.{name}' for name in uses)}"
    edits = [file.replace(node, node.attr) for node in nodes]
    return after.edited([file.insert_line(file.line_end(constant), line), *edits])


def with_one_backend(after: Document) -> Document:
    """The migrated file with a constant in place of the choice of a backend that it would make in several places.

    >>> with_one_backend(after)  # BACKEND = "hccl" if DEVICE.type == "npu" else "nccl"
    """
    written = _BACKEND.findall(after.text) if "hccl" in after.text and after.book is None else []
    file = after.python if len(written) > _FEW and not re.search(r"\bBACKEND\b", after.text) else None
    if file is None:
        return after
    choices = [each for each in file.by_type.get(ast.IfExp, ()) if _BACKEND.fullmatch(file.source(each))]
    device = file.by_name[_BACKEND.fullmatch(file.source(choices[0]))[2]][0]  # type: ignore[index]
    constant = file.statement(device)
    if constant not in file.tree.body:
        return after
    line = f"BACKEND = {file.source(choices[0])}"
    edits = [_in_place(each, file) for each in choices]
    return after.edited([file.insert_line(file.line_end(constant), line), *edits])


def _in_place(choice: ast.AST, file: PythonFile) -> Edit:
    """The constant, without the brackets that only the choice needed."""
    start, end = file.span(choice)
    in_brackets = (
        file.text[start - 1] == "(" and file.text[end] == ")" and not re.match(r"[\w\])]", file.text[start - 2])
    )
    return Edit(start - in_brackets, end + in_brackets, "BACKEND")


def with_own_device(document: Document) -> Document:
    """The migrated file without a second constant, where it has a DEVICE of its own that now says the same.

    >>> with_own_device(after)  # DEVICE = torch.device("cuda"), which became DEVICE = TORCH_DEVICE
    """
    file = document.python if "DEVICE = TORCH_DEVICE" in document.text and document.book is None else None
    found = _own_device(file) if file else None
    if file is None or found is None:
        return document
    constant, own = found
    value: ast.expr = constant.value
    later: list[ast.AST] = [node for node in file.by_name["TORCH_DEVICE"] if node.lineno > own.lineno]
    if isinstance(own.value, ast.Attribute) and isinstance(value, ast.Call):  # DEVICE = TORCH_DEVICE.type
        value = value.args[0]
        later = [parent if isinstance(parent := file.parent(node), ast.Attribute) else node for node in later]
        if not all(isinstance(node, ast.Attribute) or takes_device(node, file) for node in later):
            return document
    first, last = file.line_start(constant), file.line_end(constant)
    is_alone = file.text[:first].endswith("\n\n") and file.text.startswith("\n", last)
    edits = [Edit(first, last + is_alone, ""), file.replace(own.value, file.source(value))]
    return document.edited([*edits, *(file.replace(node, "DEVICE") for node in later)])


def _own_device(file: PythonFile) -> tuple[ast.Assign, ast.Assign] | None:
    """The constant of the migration, and the file's own that is set to it before anything else uses it."""
    uses = sorted(file.by_name.get("TORCH_DEVICE", ()), key=lambda node: node.lineno)[:2]
    statements = [file.statement(node) for node in uses]
    if len(statements) < 2 or not all(isinstance(each, ast.Assign) and each in file.tree.body for each in statements):
        return None
    constant, own = statements
    assert isinstance(constant, ast.Assign) and isinstance(own, ast.Assign)
    says_it = file.source(own) in ("DEVICE = TORCH_DEVICE", "DEVICE = TORCH_DEVICE.type")
    is_set = [node for node in file.by_name["DEVICE"] if isinstance(node.ctx, ast.Store)]
    return (constant, own) if says_it and len(is_set) == 1 and "hasattr" in file.source(constant) else None


def _ends_cell(document: Document, offset: int) -> bool:
    """Whether a cell of a notebook ends in front of this offset."""
    line = document.code.count("\n", 0, offset)
    return document.book is not None and document.book.cell_of(line) != document.book.cell_of(line + 1)


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
