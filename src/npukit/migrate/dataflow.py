"""Follow a string to where it ends up, to tell devices and backends from other strings.

Strings are followed through variables, default values, options and dictionaries. One that never becomes a device or a
backend is left alone.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from npukit.facts.device_arguments import positions
from npukit.facts.libraries import own_devices
from npukit.source import PythonFile, per_file
from npukit.source.definitions import definition_of
from npukit.source.nodes import last_name

_DEPTH = 6
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_MAKES = {"new_empty", "new_full", "new_ones", "new_tensor", "new_zeros"}  # methods of tensors
_OTHER_DEVICES = re.compile(r"[\"'](?:xpu|hpu|mps|musa|mlu)[\"']")


@dataclass(frozen=True)
class Sink:
    """A kind of place that takes devices or backends: by the name of a variable or argument, or by position in a known
    call.
    """

    names: re.Pattern[str]
    calls: dict[str, int]  # full name, or .method -> position of the argument

    def named(self, name: str | None) -> bool:
        return name is not None and bool(self.names.search(name.lstrip("-").replace("-", "_")))


DEVICE = Sink(
    re.compile(
        r"(?:^|_)(?:device|devices|dev|map_location|gpu_type)(?:$|_(?:type|str|string|name|list|map)$)", re.IGNORECASE
    ),
    positions("device"),
)
BACKEND = Sink(
    re.compile(r"(?:^|_)backend$", re.IGNORECASE),
    positions("backend"),
)


def flows_into(node: ast.AST, sink: Sink, file: PythonFile, depth: int = _DEPTH) -> bool:
    """Return whether the value of an expression ends up in such a place.

    >>> flows_into(string, DEVICE, file)  # d = "cuda"; x.to(d)
    True
    """
    parent = file.parent(node)
    if parent is None or depth == 0:
        return False
    if isinstance(parent, (ast.List, ast.Tuple)) and _follows_option(node, parent, sink):
        return True
    if isinstance(parent, (ast.Tuple, ast.List, ast.Call)) and _parametrized(node, parent, sink, file):
        return True
    if isinstance(parent, (ast.IfExp, ast.BoolOp, ast.FormattedValue, ast.JoinedStr, ast.List, ast.Tuple, ast.Set)):
        return not (isinstance(parent, ast.IfExp) and node is parent.test) and flows_into(parent, sink, file, depth)
    if isinstance(parent, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):  # [f"cuda:{rank}" for rank in ranks]
        return parent.elt is node and flows_into(parent, sink, file, depth)
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, (ast.Add, ast.Mod, ast.Mult)) and flows_into(parent, sink, file, depth)
    if isinstance(parent, ast.Subscript):  # ["cpu", "cuda"][torch.cuda.is_available()]
        if _is_literal(parent):
            return _annotates(parent, sink, file)
        is_table = isinstance(node, (ast.List, ast.Tuple, ast.Dict))
        return parent.value is node and is_table and flows_into(parent, sink, file, depth)
    if isinstance(parent, ast.keyword):
        return _keyword_flows(parent, sink, file, depth)
    if isinstance(parent, ast.Call):
        return _argument_flows(node, parent, sink, file, depth)
    if isinstance(parent, ast.Attribute):  # "cuda:{}".format(i)
        call = file.parent(parent)
        return parent.attr == "format" and isinstance(call, ast.Call) and flows_into(call, sink, file, depth)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and parent.value is node:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return any(_target_flows(target, sink, file, depth) for target in targets)
    if isinstance(parent, ast.arguments):
        return _default_flows(node, parent, sink, file, depth)
    if isinstance(parent, ast.Dict):
        return node in parent.values and _dict_value_flows(node, parent, sink, file, depth)
    if isinstance(parent, ast.Return):
        return sink.named(getattr(file.function(node), "name", None))
    if isinstance(parent, ast.Compare) and _is_whole_device(node):  # d.type == ("cuda" if ... else "cpu")
        return any(_is_compared_with(side, sink) for side in (parent.left, *parent.comparators))
    if isinstance(parent, (ast.For, ast.comprehension)):
        return parent.iter is node and _target_flows(parent.target, sink, file, depth)
    return False


def library_without_npus(call: ast.Call, file: PythonFile) -> str:
    """Return the library of the called function if it has devices of its own, none of them an NPU, else "".

    >>> library_without_npus(call, file)  # ctranslate2.Generator(path, device="cuda")
    'ctranslate2'
    """
    module = (file.resolve(call.func) or "").partition(".")[0] if imports_own_devices(file) else ""
    return module if module in own_devices() else ""


@per_file
def imports_own_devices(file: PythonFile) -> bool:
    """Return whether a file imports a library with devices of its own, none of them an NPU."""
    return any(name.partition(".")[0] in own_devices() for name in file.imported)


def _follows_option(node: ast.AST, command: ast.List | ast.Tuple, sink: Sink) -> bool:
    """Return whether a word of a command follows the option: ["python", "train.py", "--device", "cuda"]"""
    at = command.elts.index(node)  # type: ignore[arg-type]
    before = command.elts[at - 1] if at else None
    return isinstance(before, ast.Constant) and str(before.value).startswith("--") and sink.named(str(before.value))


def _parametrized(node: ast.AST, row: ast.Tuple | ast.List | ast.Call, sink: Sink, file: PythonFile) -> bool:
    """Return whether a value is a parameter of a test: parametrize("steps, device", [(3, "cuda")])"""
    values: list[ast.AST] = [*(row.args if isinstance(row, ast.Call) else row.elts)]
    table = file.parent(row)
    enclosing: ast.AST | None = None
    if isinstance(table, ast.Call) and isinstance(table.func, ast.Attribute) and table.func.attr == "append":
        enclosing = table.func.value
    elif isinstance(table, (ast.List, ast.Tuple, ast.ListComp)):
        enclosing = file.parent(table)
    name = enclosing.targets[0] if isinstance(enclosing, ast.Assign) else enclosing
    calls = [file.parent(use) for use in file.uses(name)] if isinstance(name, ast.Name) else [enclosing]
    rows = [_names_of_parameters(call) for call in calls if isinstance(call, ast.Call)]
    return node in values and any(
        len(names) == len(values) and sink.named(names[values.index(node)].strip()) for names in rows
    )


def _names_of_parameters(call: ast.Call) -> list[str]:
    if getattr(call.func, "attr", "") != "parametrize" or not call.args:
        return []
    first = call.args[0]
    elements = first.elts if isinstance(first, (ast.List, ast.Tuple)) else [first]
    return ",".join(str(name.value) for name in elements if isinstance(name, ast.Constant)).split(",")


def is_allowed_value(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a string is one of several values that an option, an annotation or a list of devices allows."""
    around = file.parent(node)
    if not isinstance(around, (ast.List, ast.Tuple, ast.Set)):
        return False
    enclosing = file.parent(around)
    if _OTHER_DEVICES.search(file.source(around)) or (isinstance(enclosing, ast.Subscript) and _is_literal(enclosing)):
        return True
    return isinstance(enclosing, ast.keyword) and enclosing.arg == "choices"


def _is_literal(node: ast.Subscript) -> bool:
    return last_name(node.value) == "Literal"


def _annotates(node: ast.AST, sink: Sink, file: PythonFile) -> bool:
    """Return whether a literal type belongs to such a name: device: Literal["cpu", "cuda"]"""
    for parent in file.ancestors(node):
        if isinstance(parent, ast.arg):
            return sink.named(parent.arg)
        if isinstance(parent, ast.AnnAssign):
            return sink.named(getattr(parent.target, "id", None) or getattr(parent.target, "attr", None))
        if isinstance(parent, ast.Assign):  # DistributedBackend = Literal["gloo", "nccl"]
            return sink.named(_HUMP.sub("_", getattr(parent.targets[0], "id", "")))
        if isinstance(parent, ast.stmt):
            return False
    return False


def _is_whole_device(node: ast.AST) -> bool:
    """Return whether a compared value is one device, chosen or numbered, rather than a kind of device."""
    numbered = isinstance(node, ast.Constant) and bool(re.fullmatch(r"cuda:\d+", str(node.value)))
    return numbered or isinstance(node, (ast.IfExp, ast.JoinedStr, ast.BinOp))


def _is_compared_with(node: ast.expr, sink: Sink) -> bool:
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "str" and node.args:  # str(x.device)
        node = node.args[0]
    if isinstance(node, ast.Attribute) and node.attr == "type":
        node = node.value
    return sink.named(last_name(node))


def _dict_value_flows(node: ast.AST, table: ast.Dict, sink: Sink, file: PythonFile, depth: int) -> bool:
    """Return whether a dictionary's value becomes a device or backend, judging by its key or by its lookups."""
    key = table.keys[table.values.index(node)]  # type: ignore[arg-type]
    if isinstance(key, ast.Constant) and isinstance(key.value, str) and sink.named(key.value):
        return True
    parent = file.parent(table)
    if flows_into(table, sink, file, depth):
        return True
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    return any(
        flows_into(looked_up, sink, file, depth - 1)
        for use in file.uses(parent.targets[0])
        if isinstance(looked_up := file.parent(use), ast.Subscript) and looked_up.value is use
    )


def _target_flows(target: ast.expr, sink: Sink, file: PythonFile, depth: int) -> bool:
    """Return whether the target of an assignment is used as a device or backend."""
    if isinstance(target, ast.Name):
        scope = file.names.scope_of(target)
        if isinstance(scope, ast.ClassDef) and any("Enum" in file.source(base) for base in scope.bases):
            return False
        return sink.named(target.id) or any(flows_into(use, sink, file, depth - 1) for use in file.uses(target))
    if isinstance(target, ast.Attribute):
        return sink.named(target.attr)
    if isinstance(target, ast.Subscript):
        key = target.slice
        return isinstance(key, ast.Constant) and isinstance(key.value, str) and sink.named(key.value)
    return False


def _keyword_flows(keyword: ast.keyword, sink: Sink, file: PythonFile, depth: int) -> bool:
    call = file.parent(keyword)
    if not isinstance(call, ast.Call):
        return False
    method = last_name(call.func)
    if method in ("add_argument", "option", "Option", "Argument", "field", "Field"):
        if keyword.arg not in ("default", "default_factory", "choices", "const", "type"):
            return False
        is_field = method not in ("add_argument", "option")
        return _option_flows(call, sink) or (is_field and flows_into(call, sink, file, depth))
    if library_without_npus(call, file):
        return False
    if keyword.arg == "type" and method == "device":  # torch.device(type="cuda", index=0)
        return file.resolve(call.func) in sink.calls
    return sink.named(keyword.arg)


def _option_flows(call: ast.Call, sink: Sink) -> bool:
    """Return whether an option is a device or backend, judging by its name."""
    names = [node.value for node in call.args if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    names += [str(k.value.value) for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)]
    return any(sink.named(name) for name in names)


def _argument_flows(node: ast.AST, call: ast.Call, sink: Sink, file: PythonFile, depth: int) -> bool:
    if node not in call.args:
        return False
    position = call.args.index(node)
    func = call.func
    name = file.resolve(func)
    if name in sink.calls:
        return sink.calls[name] == position
    if sink is DEVICE and (name or "").startswith(("torch.cuda.", "torch.npu.")):
        return True
    method = last_name(func)
    if method in ("format", "join") and isinstance(func, ast.Attribute):
        return flows_into(call, sink, file, depth)
    if isinstance(func, ast.Attribute) and sink.calls.get("." + method) == position:
        return True
    is_known = method in ("get", "getenv", "setdefault", "pop", "getattr", "setattr", "parametrize")
    if is_known and own_method(func, file) is None:
        key = call.args[position - 1] if position else None
        return isinstance(key, ast.Constant) and isinstance(key.value, str) and sink.named(key.value)
    if method in ("append", "add") and isinstance(func, ast.Attribute):  # devices.append("cuda")
        return sink.named(last_name(func.value).removesuffix("s"))
    if method in ("Option", "Argument", "Field"):  # of typer and pydantic: device: str = Field("cuda")
        return position == 0 and flows_into(call, sink, file, depth)
    parameter = parameter_of(func, position, file)
    return parameter is not None and _parameter_used(parameter, sink, file, depth)


def _default_flows(node: ast.AST, arguments: ast.arguments, sink: Sink, file: PythonFile, depth: int) -> bool:
    function = file.parent(arguments)
    for parameter in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]:
        for binding in file.names.bindings_in(function, parameter.arg):
            if binding.value is node:
                return _parameter_used(parameter, sink, file, depth)
    return False


def _parameter_used(parameter: ast.arg, sink: Sink, file: PythonFile, depth: int) -> bool:
    if sink.named(parameter.arg) or file.parent(parameter) is None:  # a parameter in another file has no parent here
        return sink.named(parameter.arg)
    return any(flows_into(use, sink, file, depth - 1) for use in file.uses(parameter))


def parameter_of(func: ast.expr, position: int, file: PythonFile) -> ast.arg | None:
    """Return the parameter that receives the argument at a position.

    >>> parameter_of(call.func, 1, file)  # to_device(batch, "cuda"), of another file of the project
    """
    definition = own_method(func, file) or definition_of(func, file.names, "")
    if isinstance(definition, ast.ClassDef):
        made = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        definition, position = (made[0] if made else None), position + 1
    elif definition is not None and definition is own_method(func, file):
        position += 1
    if not isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    return parameters[position] if position < len(parameters) else None


def is_device_argument(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a torch.device may replace a name or number: torch.zeros(1, device="cuda"), x.to("cuda")"""
    parent = file.parent(node)
    by_name = isinstance(parent, ast.keyword) and parent.arg == "device"
    call = file.parent(parent) if by_name and parent else parent
    if not isinstance(call, ast.Call):
        return False
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    moves = method == "to" and (by_name or call.args[:1] == [node])
    return moves or (by_name and (method in _MAKES or (file.resolve(call.func) or "").startswith("torch.")))


def own_method(func: ast.expr, file: PythonFile) -> ast.AST | None:
    """Return the method that `self.NAME`, or NAME of an object made in this file, refers to."""
    if not isinstance(func, ast.Attribute):
        return None
    owner = file.class_around(func) if _is_self(func.value) else _class_of(func.value, file)
    methods = owner.body if owner else ()
    return next((node for node in methods if isinstance(node, ast.FunctionDef) and node.name == func.attr), None)


def _class_of(value: ast.expr, file: PythonFile) -> ast.ClassDef | None:
    """Return the class of a variable that holds nothing but None and instances of one class of the file."""
    bindings = file.bindings(value) if isinstance(value, ast.Name) else ()
    values = [binding.value for binding in bindings if not isinstance(binding.value, ast.Constant)]
    classes = [node.func.id for node in values if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    if not classes or len(classes) != len(values):
        return None
    definitions = (node for node in file.tree.body if isinstance(node, ast.ClassDef) and node.name == classes[0])
    return next(definitions, None)


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")
