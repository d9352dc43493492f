"""The words of each style: how migrated code names the device, and the lines that this needs at the head of a file.

portable:  DEVICE = torch.device("npu" if hasattr(torch, "npu") else "cuda" if ... else "cpu")
           DEVICE_TYPE = "npu" if hasattr(torch, "npu") else "cuda"
           ACCELERATOR = getattr(torch, "npu", torch.cuda)
npu:       import torch_npu

These constants follow from what is installed and ask no device, so that importing a file stays harmless: the program
may still choose its cards, or fork. Without torch_npu they are what the code said before. In a file that does not load
torch when it is imported, the same is written where it is used, or not at all.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache

from npukit.migrate import device_layers, guards, head, torch_imports
from npukit.migrate.cuda_graphs import graph_around
from npukit.migrate.goal import Goal
from npukit.migrate.layout import configured
from npukit.source import Edit, PythonFile

_GUARD = re.compile(r"cuda|gpu|npu|accelerator|(?-i:\bDEVICE\b)", re.IGNORECASE)
_NPU = re.compile(r"ASCEND_|(?<![A-Za-z])npu(?![a-z])|hccl|transfer_to_npu", re.IGNORECASE)
_COMMENTED_OUT = re.compile(r"""#\s*["'](?:npu|hccl)["'],?\s*$""", re.MULTILINE)  # in a list: to be supported
_NPU_QUICKLY = re.compile(r"npu(?![a-z])(?<![a-z]npu)")  # in lower case; a search that starts with letters is quick
# Code that asks whether there are NPUs chooses among devices itself; neither style writes these names.
_CHOOSES_NPU = re.compile(r"\b(?:(?:is_)?(?:torch_|ascend_)?npu_available|(?:has|is|use)_npu)\b", re.IGNORECASE)
_DEVICE = '{0}.device("npu" if hasattr({0}, "npu") else "cuda" if {0}.backends.cuda.is_built() else "cpu")'
_ACCELERATOR = 'getattr({0}, "npu", {0}.cuda)'
LOAD_TORCH_NPU = ("try:", "    import torch_npu", "except ImportError:", "    pass")
_KIND = '"npu" if hasattr({0}, "npu") else "cuda"'


@dataclass(frozen=True)
class Text:
    """Code to write, and the edits elsewhere in the file without which it would not run."""

    text: str
    edits: tuple[Edit, ...] = ()


def torch_name(file: PythonFile) -> Text:
    """What torch is called at the top of this file; it is imported where it is not."""
    name = torch_imports.at_top(file)
    return Text(name) if name else Text("torch", (file.insert_line(*torch_imports.insertion(file)),))


def import_torch_npu(file: PythonFile) -> tuple[Edit, ...]:
    """`import torch_npu` below `import torch`; nothing where it is imported, or torch is not at the top."""
    if file.imports("torch_npu") or not torch_imports.loads_torch(file):
        return ()
    return (file.insert_import("import torch_npu", after="torch"),)


def device(node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
    """The device as a torch.device; None where the node cannot say it."""
    if not goal.portable:
        return Text(f'{torch_name(file).text}.device("npu")', import_torch_npu(file))
    if own := device_layers.said("device", node, file):
        return Text(own)
    if torch_imports.written_at_top(node, file):
        return _constant("DEVICE", _DEVICE, file, goal)
    torch = torch_imports.visible(node, file)
    return Text(f"{torch}.device({_kind(torch, node, file)})") if torch else None


def device_type(node: ast.AST, file: PythonFile, goal: Goal, quote: str = '"', of_card: bool = False) -> Text | None:
    """The kind of device as a string expression; None where the node cannot say it.

    With `of_card` never the CPU: torch.autocast("cuda") does nothing there, and ["cpu", "cuda"] names two devices."""
    if not goal.portable:
        return Text(f"{quote}npu{quote}", import_torch_npu(file))
    if own := device_layers.said("kind", node, file):
        return Text(own)
    if of_card and torch_imports.written_at_top(node, file):
        return _constant("DEVICE_TYPE", _KIND, file, goal)
    if torch_imports.written_at_top(node, file):
        name = _constant("DEVICE", _DEVICE, file, goal)
        return Text(f"{name.text}.type", name.edits)
    torch = torch_imports.visible(node, file)
    if torch is None or _in_f_string(node, file):
        return None
    kind = _kind(torch, node, file)
    return Text(kind if isinstance(file.parent(node), (ast.keyword, ast.Assign)) else f"({kind})")


def _kind(torch: str, node: ast.AST, file: PythonFile) -> str:
    kind = _KIND.format(torch)
    return kind if _in_f_string(node, file) else kind.replace('"', quote(node, file))


def _in_f_string(node: ast.AST, file: PythonFile) -> bool:
    return isinstance(node, ast.JoinedStr) or any(isinstance(each, ast.JoinedStr) for each in file.ancestors(node))


def device_module(node: ast.AST, file: PythonFile, goal: Goal) -> Text:
    """The module with the device's functions, also on the CPU: torch.npu, torch.cuda or torch.cpu."""
    if not goal.portable:
        torch = torch_name(file)
        return Text(f"{torch.text}.npu", (*torch.edits, *import_torch_npu(file)))
    name = device(node, file, goal)
    if not goal.names_devices or name is None or not torch_imports.written_at_top(node, file):
        return accelerator(node, file, goal)
    return Text(f"{torch_name(file).text}.get_device_module({name.text})", name.edits)


def accelerator(node: ast.AST, file: PythonFile, goal: Goal) -> Text:
    """torch.npu where there is one, else torch.cuda, which torch has on every machine."""
    if not torch_imports.written_at_top(node, file):
        return _local_accelerator(node, file)
    return _constant("ACCELERATOR", _ACCELERATOR, file, goal)


def _local_accelerator(node: ast.AST, file: PythonFile) -> Text:
    """A variable below the import of torch in a function, where that stands by itself."""
    torch, statement = torch_imports.nearest(node, file)
    value = _ACCELERATOR.format(torch or "torch")
    function = file.parent(statement) if statement else None
    if not isinstance(statement, ast.Import) or not isinstance(function, ast.FunctionDef):
        return Text(value)
    line = f"accelerator = {value}"
    if line in file.source(function):
        return Text("accelerator")
    if re.search(r"\baccelerator\b", file.source(function)) or not file.alone_on_lines(statement):
        return Text(value)
    indent = file.text[file.line_start(statement) : file.span(statement)[0]]
    last = _last_import(statement, function)
    return Text("accelerator", (file.insert_line(file.line_end(last), f"{file.newline}{indent}{line}"),))


def _last_import(first: ast.Import, function: ast.FunctionDef) -> ast.stmt:
    """The last of the imports that stand together."""
    last: ast.stmt = first
    for statement in function.body[function.body.index(first) + 1 :]:
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            break
        last = statement
    return last


def quote(node: ast.AST, file: PythonFile) -> str:
    """The quotation mark of strings around, in the statement or else in the file."""
    return _more_used(file.source(file.statement(node))) or _quote_of(file)


@lru_cache(maxsize=4)
def _quote_of(file: PythonFile) -> str:
    formatter = configured(file.path.parent.absolute(), file.names.root and file.names.root.absolute())
    return _more_used(file.text) or (formatter.quote if formatter else '"')


def _more_used(text: str) -> str:
    double, single = (len(re.findall(rf"{mark}(?<![\w{mark}]{mark})(?!{mark})", text)) for mark in ('"', "'"))
    return "'" if single > double else '"' if double > single else ""


def default_backend(node: ast.AST, file: PythonFile, goal: Goal, quote: str = '"') -> Text | None:
    """The communication backend of the device."""
    if own := device_layers.said("backend", node, file):
        return Text(own)
    name = device(node, file, goal)
    if name is None:
        return None
    choice = f"{quote}hccl{quote} if {{}} else {quote}nccl{quote}"
    if not torch_imports.written_at_top(node, file):
        return Text(choice.format(f"hasattr({torch_imports.visible(node, file)}, {quote}npu{quote})"))
    if not goal.names_devices:
        return Text(choice.format(f"{name.text}.type == {quote}npu{quote}"), name.edits)
    return Text(f"{distributed_name(file)}.get_default_backend_for_device({name.text})", name.edits)


@lru_cache(maxsize=16)
def _constant(name: str, value: str, file: PythonFile, goal: Goal) -> Text:
    """A constant below the imports; the one of an earlier migration where there is one."""
    own = _own_constant(value, file)
    if own:
        return Text(own)
    torch = torch_name(file)
    taken = name in file.text and any(isinstance(node, ast.Name) and node.id == name for node in file.nodes)
    name = f"TORCH_{name}" if taken else name
    below = head.below_torch(file)
    line = f"{name} = {value.format(torch.text)}".replace('"', _quote_of(file))
    lines = (file.insert_line(below, ""), file.insert_line(below, line))
    return Text(name, (*torch.edits, *_try_torch_npu(file, goal), *lines))


def _try_torch_npu(file: PythonFile, goal: Goal) -> tuple[Edit, ...]:
    """Before torch 2.5, `import torch` does not load torch_npu by itself."""
    if goal.loads_torch_npu or file.imports("torch_npu"):
        return ()
    below = head.below_torch(file)
    return (file.insert_line(below, file.newline.join(("", *LOAD_TORCH_NPU))),)


def is_own_constant(
    node: ast.Assign, file: PythonFile, values: tuple[str, ...] = (_DEVICE, _ACCELERATOR, _KIND)
) -> bool:
    """Whether the statement is one that a migration wrote."""
    torch = torch_imports.at_top(file) or "torch"
    return "npu" in file.source(node.value) and ast.unparse(node.value) in (_plain(each, torch) for each in values)


@lru_cache(maxsize=16)
def _plain(value: str, torch: str) -> str:
    """A constant's value whatever its quotation marks and layout, which also are the file's or its formatter's."""
    return ast.unparse(ast.parse(value.format(torch)))


def _own_constant(value: str, file: PythonFile) -> str | None:
    """The name of the constant that an earlier migration wrote."""
    for node in file.tree.body if "npu" in file.text else ():
        if isinstance(node, ast.Assign) and is_own_constant(node, file, (value,)):
            return node.targets[0].id if isinstance(node.targets[0], ast.Name) else None
    return None


def distributed_name(file: PythonFile) -> str:
    """What torch.distributed is called at the top of this file."""
    for node in file.tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.distributed" and alias.asname:
                    return alias.asname
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            for alias in node.names:
                if alias.name == "distributed":
                    return alias.asname or alias.name
    return f"{torch_name(file).text}.distributed"


@lru_cache(maxsize=4)
def _speaks_of_npus(file: PythonFile) -> bool:
    lowered = file.text.lower()
    return "hccl" in lowered or "ascend_" in lowered or bool(_NPU_QUICKLY.search(lowered))


def guarded(node: ast.AST, file: PythonFile) -> bool:
    """Whether the node runs only where a condition about the device holds."""
    child = node
    for parent in file.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            inside = child is not parent.test and child not in _as_list(parent.orelse)
            if inside and _GUARD.search(file.source(parent.test)):
                return True
        elif isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: parent.values.index(child)] if child in parent.values else []
            if any(_GUARD.search(file.source(each)) for each in before):
                return True
        child = parent
    return False


def _as_list(value: list[ast.stmt] | ast.expr | None) -> list[ast.AST]:
    return list(value) if isinstance(value, list) else [value] if value is not None else []


def stays(node: ast.AST, file: PythonFile, goal: Goal) -> bool:
    """Whether code stays as it is: it runs for CUDA only, or serves NPUs already."""
    if goal.portable and graph_around(node, file) is not None:
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
