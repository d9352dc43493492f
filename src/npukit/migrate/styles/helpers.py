"""Replace the placeholders that the portable style writes while rules work on a file.

Once all rules are done, each placeholder becomes an expression if it is used once, and a constant otherwise:

    once:      model.to(torch.accelerator.current_accelerator())
    twice:     DEVICE = torch.device(torch.accelerator.current_accelerator() or "cpu")   # below the imports
    a module:  device_module.empty_cache(), with its constant from the first call on

A constant that an earlier migration wrote is used again. If a file names the device anyway, a single call of its module
becomes getattr(torch, DEVICE).f(), and a single question becomes torch.cuda.is_available() or (...). None of these asks
for a device while a file is imported, since the program may still choose its cards or fork.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from npukit.migrate import torch_imports
from npukit.migrate.partial_tree import changed_part
from npukit.migrate.styles.style import TAKES_ANY, parenthesized_for, torch_name, usual_quote
from npukit.migrate.training import tolerates_failure
from npukit.source import Document, Edit, PythonFile

DEVICE, DEVICE_TYPE, MODULE, BACKEND = "NPUKIT_DEVICE", "NPUKIT_DEVICE_TYPE", "NPUKIT_MODULE", "NPUKIT_BACKEND"
MADE = "NPUKIT_MADE"  # the device in place of torch.device, never None
LOAD_TORCH_NPU = ("try:", "    import torch_npu", "except ImportError:", "    pass")
_ASKED = re.compile(r"""hasattr\(\w+, ["']npu["']\)""")


@dataclass(frozen=True)
class _Helper:
    """A constant: its name, its value, and what is written instead if the placeholder is used only once."""

    name: str
    value: str
    once: str
    asked: str = ""  # written for a single is_available() of the module
    module: str = ""  # written for a single call of the module of device NAME

    def in_torch(self, torch: str, mark: str = '"') -> _Helper:
        templates = (self.value, self.once, self.asked, self.module)
        return _Helper(self.name, *(template.format(torch).replace('"', mark) for template in templates))

    def used(self, node: ast.Name, name: str) -> str:
        return self.module.replace("NAME", name) if node.id == MODULE and self.module else name


_KIND = '"npu" if hasattr({0}, "npu") else "cuda"'
_MODULE = '{0}.npu if hasattr({0}, "npu") else {0}.cuda'
_NAMED = _Helper("DEVICE", _KIND, _KIND, module="getattr({0}, NAME)")
_BY_NAME = {
    DEVICE: _NAMED,
    DEVICE_TYPE: _NAMED,
    MODULE: _Helper(
        "device_module",
        _MODULE,
        _MODULE,
        asked='{0}.cuda.is_available() or (hasattr({0}, "npu") and {0}.npu.is_available())',
    ),
    BACKEND: _Helper("BACKEND", *['"hccl" if hasattr({0}, "npu") else "nccl"'] * 2),
}
_MADE = '{0}.device({0}.accelerator.current_accelerator() or "cpu")'
_BY_ACCELERATOR = {
    **_BY_NAME,
    DEVICE: _Helper("DEVICE", _MADE, "{0}.accelerator.current_accelerator()"),
    MADE: _Helper("DEVICE", _MADE, _MADE),
    DEVICE_TYPE: _Helper("DEVICE_TYPE", _KIND, _KIND, module="{0}.get_device_module(NAME)"),
}


def with_helpers(before: Document, after: Document, by_accelerator: bool, loads_torch_npu: bool) -> Document:
    """Return the migrated file with its placeholders replaced.

    >>> with_helpers(before, after, by_accelerator=True, loads_torch_npu=True).text
    """
    helpers = _BY_ACCELERATOR if by_accelerator else _BY_NAME
    may_need = _ASKED.search(after.code) or any(name in after.code for name in helpers)
    original, file = (before.python, changed_part(before, after)) if may_need else (None, None)
    if original is None or file is None:
        return after
    edits: list[Edit] = []
    lines: list[str] = []
    for (_, scope), nodes in _uses(file, helpers).items():
        edits += (
            _at_top(helpers, nodes, original, file, lines)
            if scope is file.tree
            else _in_function(helpers, nodes, original, file)
        )
    written = after.code + "".join(edit.text for edit in edits) + "".join(lines)
    asks = len(_ASKED.findall(written)) > len(_ASKED.findall(before.code))
    if asks and not loads_torch_npu and not file.imports("torch_npu") and torch_imports.loads_torch(file):
        lines = [*LOAD_TORCH_NPU, *(["", *lines] if lines else [])]
    if lines:
        edits.append(_below_imports(lines, file))
    return after.edited(edits) if edits else after


def spelled_out(text: str) -> str:
    """Return written code for a sentence to the user, with placeholders spelled out.

    >>> spelled_out("NPUKIT_MODULE.empty_cache")
    '(torch.npu if hasattr(torch, "npu") else torch.cuda).empty_cache'
    """
    for name in (DEVICE_TYPE, DEVICE, MODULE, BACKEND):
        text = text.replace(name, f"({_BY_NAME[name].once.format('torch')})")
    return text


def _uses(file: PythonFile, helpers: dict[str, _Helper]) -> dict[tuple[str, ast.AST], list[ast.Name]]:
    """Return where each value is used, by the scope that imports torch."""
    uses: dict[tuple[str, ast.AST], list[ast.Name]] = {}
    for name, helper in helpers.items():
        for node in file.by_name.get(name, ()):
            assert isinstance(node, ast.Name)
            scope = file.tree if torch_imports.written_at_top(node, file) else _scope(node, file)
            uses.setdefault((helper.value, scope), []).append(node)
    module, kind = helpers[MODULE].value, helpers[DEVICE_TYPE].value
    once, by_kind = uses.get((module, file.tree), []), uses.get((kind, file.tree), [])
    if len(once) == 1 and not _decorates(once[0], file) and not all(_is_set_to(node, file) for node in by_kind):
        by_kind += uses.pop((module, file.tree))
    return uses


def _is_set_to(node: ast.Name, file: PythonFile) -> bool:
    """Return whether a placeholder is the value of a variable in the file: device = "cuda" """
    return isinstance(file.parent(node), (ast.Assign, ast.AnnAssign))


def _decorates(node: ast.Name, file: PythonFile) -> bool:
    """Return whether a placeholder is part of a decorator, which may only be a dotted name before Python 3.9."""
    decorators = getattr(file.statement(node), "decorator_list", ())
    return any(node in ast.walk(getattr(decorator, "func", decorator)) for decorator in decorators)


def _scope(node: ast.Name, file: PythonFile) -> ast.AST:
    """Return the function that imports torch, or the file, or the `try` statement if the file copes without torch."""
    _, statement = torch_imports.nearest(node, file)
    around = file.function(statement or node)
    optional = statement is not None and around is file.tree and tolerates_failure(statement, file)
    return (file.parent(statement) if optional and statement else None) or around


def _at_top(
    helpers: dict[str, _Helper], nodes: list[ast.Name], original: PythonFile, file: PythonFile, lines: list[str]
) -> Iterator[Edit]:
    torch, mark = torch_name(file).text, usual_quote(original)
    constant = {node: helpers[node.id].in_torch(torch, mark) for node in nodes}
    first = constant[nodes[0]]
    name = _own_constant(first.value, file)
    set_to = [node for node in nodes if name is None and _is_set_to(node, file)]
    yield from (file.replace(node, constant[node].once) for node in set_to)  # device = NPUKIT_DEVICE
    nodes = [node for node in nodes if node not in set_to]
    if not nodes:
        return
    is_once = name is None and len(nodes) == 1 and not _calls_module(nodes[0], file)
    if is_once and (edit := _once(constant[nodes[0]], nodes[0], file)):
        yield edit
        return
    if name is None:
        name = f"TORCH_{first.name}".upper() if _is_taken(first.name, original) else first.name
        lines.append(f"{name} = {first.value}")
    yield from (file.replace(node, first.used(node, name)) for node in nodes)


def _calls_module(node: ast.Name, file: PythonFile) -> bool:
    """Return whether a placeholder is the module of a call other than is_available: device_module.empty_cache()"""
    function = file.parent(node)
    return node.id == MODULE and isinstance(function, ast.Attribute) and function.attr != "is_available"


def _is_taken(name: str, file: PythonFile) -> bool:
    """Return whether a name is already used in the file, outside of comments and strings."""
    if any(isinstance(node, ast.Name) for node in file.by_name.get(name, ())):
        return True
    kinds, fields = (ast.arg, ast.alias, ast.FunctionDef, ast.ClassDef), ("arg", "asname", "name")
    nodes = (node for kind in kinds for node in file.of_type(kind)) if file.has(name) else ()
    return any(getattr(node, field, "") == name for node in nodes for field in fields)


def _in_function(
    helpers: dict[str, _Helper], nodes: list[ast.Name], original: PythonFile, file: PythonFile
) -> Iterator[Edit]:
    """Define the constant below the function's own import of torch, if that is a statement of its own."""
    torch, statement = torch_imports.nearest(nodes[0], file)
    constant = helpers[nodes[0].id].in_torch(torch or "torch", usual_quote(original))
    around = file.parent(statement) if statement else None
    name = constant.name.lower()
    body = getattr(around, "body", [])
    may_define = isinstance(statement, ast.Import) and isinstance(around, ast.FunctionDef) and statement in body
    taken = around is not None and re.search(rf"\b{name}\b", file.source(around))
    is_short = len(nodes) == 1 and not _calls_module(nodes[0], file)
    if may_define and not taken and file.alone_on_lines(statement) and not is_short:  # type: ignore[arg-type]
        assert isinstance(statement, ast.Import)
        last: ast.stmt = statement
        for following in body[body.index(statement) + 1 :]:
            if not isinstance(following, (ast.Import, ast.ImportFrom)):
                break
            last = following
        yield file.insert_line(file.line_end(last), f"{file.indent(statement)}{name} = {constant.value}")
        yield from (file.replace(node, name) for node in nodes)
        return
    for node in nodes:
        constant = helpers[node.id].in_torch(torch or "torch", usual_quote(original))
        yield _once(constant, node, file) or file.replace(node, f"({_quoted(constant.once, node, file)})")


def _string_around(node: ast.AST, file: PythonFile) -> ast.JoinedStr | None:
    return next((ancestor for ancestor in file.ancestors(node) if isinstance(ancestor, ast.JoinedStr)), None)


def _quoted(text: str, node: ast.AST, file: PythonFile) -> str:
    """Return a text with quotation marks that differ from those of the string around it."""
    string = _string_around(node, file)
    mark = ("'" if file.source(string).endswith('"') else '"') if string else ""
    return re.sub("[\"']", mark, text) if mark else text


def _once(constant: _Helper, node: ast.Name, file: PythonFile) -> Edit | None:
    """Replace the only use by an expression. Return None if a string or an old decorator cannot hold it."""
    text, parent = constant.once, file.parent(node)
    if _decorates(node, file):
        return None
    if isinstance(parent, ast.FormattedValue):
        string = file.parent(parent)
        return _two_strings(text, f"{{{node.id}}}", "", string, file) if string else None
    if isinstance(parent, ast.Call) and (edit := _two_strings(text, "{}", f"{node.id}, ", parent, file)):
        return edit
    if _string_around(node, file) and '"' in text.replace("'", '"'):
        return None
    asked = file.parent(parent) if constant.asked and getattr(parent, "attr", "") == "is_available" and parent else None
    if isinstance(asked, ast.Call) and asked.func is parent:
        return file.replace(asked, parenthesized_for(constant.asked, asked, file))
    return file.replace(node, parenthesized_for(text, node, file))


def _two_strings(text: str, slot: str, given: str, filled: ast.AST, file: PythonFile) -> Edit | None:
    """Turn f"{DEVICE_TYPE}:{rank}" into f"npu:{rank}" if hasattr(torch, "npu") else f"cuda:{rank}".

    Likewise for "{}:{}".format(DEVICE_TYPE, rank), whose slot is "{}".
    """
    choice = re.fullmatch(r"""["'](\w+)["'] if (.*) else ["'](\w+)["']""", text)
    source = file.source(filled)
    starts = re.match(rf"""f?["']{re.escape(slot)}""", source, re.IGNORECASE)
    if not choice or not starts or given not in source or not isinstance(file.parent(filled), TAKES_ANY):
        return None
    if source.count("NPUKIT_") != 1 or "\n" in source:
        return None
    strings = [source.replace(slot, word, 1).replace(given, "", 1) for word in (choice[1], choice[3])]
    if isinstance(filled, ast.JoinedStr) and len(filled.values) == 2 and isinstance(filled.values[1], ast.Constant):
        strings = [literal[1:] for literal in strings]  # no longer an f-string
    mark = source[starts.end() - len(slot) - 1]
    condition = choice[2].replace('"', mark).replace("'", mark)
    return file.replace(filled, f"{strings[0]} if {condition} else {strings[1]}")


def _own_constant(value: str, file: PythonFile) -> str | None:
    """Return the name of the constant that an earlier migration wrote, if there is one."""
    for node in file.tree.body if "npu" in file.text or "accelerator" in file.text else ():
        name = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(name, ast.Name) and ast.unparse(node.value) == _plain(value):  # type: ignore[attr-defined]
            return name.id
    return None


@lru_cache(maxsize=64)
def _plain(value: str) -> str:
    """Return a value with uniform quotation marks and layout."""
    return ast.unparse(ast.parse(value))


def is_own_constant(node: ast.Assign, file: PythonFile) -> bool:
    """Return whether a statement was written by a migration."""
    torch = torch_name(file).text
    values = {helper.in_torch(torch).value for helpers in (_BY_NAME, _BY_ACCELERATOR) for helper in helpers.values()}
    return ast.unparse(node.value) in {_plain(value) for value in values}


def _below_imports(lines: list[str], file: PythonFile) -> Edit:
    """Insert lines below the imports, separated by blank lines."""
    below = torch_imports.below_torch(file)
    follows = file.text[below:]
    is_apart = not follows or re.match(r"[ \t]*(?:\r?\n|$)", follows) or _ends_cell(file, below)
    return file.insert_line(below, file.newline.join(["", *lines, *([] if is_apart else [""])]))


def _ends_cell(file: PythonFile, offset: int) -> bool:
    """Return whether a cell of a notebook ends just before this offset."""
    if file.path.suffix != ".ipynb" or offset == 0:
        return False
    return file.place_of(offset - 1, offset).cell != file.place_of(offset, offset).cell
