"""The portable style, in which the same file runs on CUDA, NPUs and the CPU.

    before:             device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with torch >= 2.7:  device = torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    with older torch:   device = torch.device("npu" if hasattr(torch, "npu") and torch.npu.is_available() else ...)

Nothing changes on CUDA. torch.accelerator supports torch_npu since torch 2.7, but for its memory functions, which are
taken from torch.npu or torch.cuda. Files that name further kinds of device, such as mps, keep choosing by name because
torch.accelerator would answer for those as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from npukit.facts.versions import key
from npukit.migrate import torch_imports
from npukit.migrate.dataflow import is_device_argument
from npukit.migrate.goal import Goal
from npukit.migrate.graphs import graph_around
from npukit.migrate.patches import is_test_file
from npukit.migrate.questions import is_negated
from npukit.migrate.styles import helpers
from npukit.migrate.styles.choices import (
    asked_in,
    branch,
    choice_of,
    copies_device_name,
    is_from_cpu,
    is_skipped_without,
    is_where_available,
    names_others,
    own_device,
)
from npukit.migrate.styles.strings import (
    card_number,
    extend_choice,
    fill_in_device,
    is_beside_cpu,
    is_constant,
    is_device,
    is_for_autocast,
    names_cuda,
)
from npukit.migrate.styles.style import (
    Edits,
    Text,
    enclosing_call,
    quote_near,
    torch_name,
    with_replacement,
)
from npukit.source import Document, Edit, PythonFile
from npukit.source.nodes import last_name

# Functions of torch.cuda, with their names in torch.accelerator.
_ACCELERATOR = {
    "is_available": "is_available",
    "device_count": "device_count",
    "set_device": "set_device_index",
    "current_device": "current_device_index",
    "synchronize": "synchronize",
    "current_stream": "current_stream",
    "set_stream": "set_stream",
}
_CLASSES = {"Stream": "2.4", "Event": "2.4"}  # classes for every device, with the first torch that has them
_CUDA = re.compile(r"(?<=[\"'])cuda")
_SEEDS = ("manual_seed", "manual_seed_all")


def by_accelerator(file: PythonFile, goal: Goal) -> bool:
    """Return whether a file may use torch.accelerator. Files that ask for further kinds of device by name do not."""
    return goal.names_devices and not names_others(file)


def _asks_by_name(file: PythonFile, goal: Goal) -> bool:
    """Return whether torch.cuda is asked by name, because torch.accelerator is missing or tests replace it."""
    return not by_accelerator(file, goal) or ("is_available" in goal.patched and not is_test_file(file.path))


class Portable:
    """Writes torch.accelerator if the project's torch has it, else the NPU's names beside CUDA's."""

    accelerator = "accelerator"
    imports_from_npu = False

    def device(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        if own := own_device(node, file):
            return Text(own)
        torch = _torch(node, file)
        if torch is None:
            return None
        if by_accelerator(file, goal) and is_where_available(node, file):
            return Text(f"{torch.text}.accelerator.current_accelerator()", torch.edits)
        return Text(helpers.DEVICE, torch.edits)

    def device_type(self, node: ast.AST, file: PythonFile, goal: Goal, of_card: bool = False) -> Text | None:
        torch = _torch(node, file)
        if torch is None:
            return None
        is_there = not of_card and (is_where_available(node, file) or is_skipped_without(node, file))
        if by_accelerator(file, goal) and is_there:
            return Text(f"{torch.text}.accelerator.current_accelerator().type", torch.edits)
        return Text(helpers.DEVICE_TYPE, torch.edits)

    def device_string(self, node: ast.expr, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
        _, mark, _, rest = match.groups()
        choice, call, torch = choice_of(node, file), file.parent(node), _torch(node, file)
        if copies_device_name(call, file):
            npu, cuda = (_CUDA.sub("npu", file.source(part)) for part in (call.body, call.test))  # type: ignore[union-attr]
            return (file.insert(file.span(call)[0], f"{npu} if {cuda} else "),)  # type: ignore[arg-type]
        if torch is None:
            return ()
        if _asks_by_name(file, goal) and (longer := extend_choice(node, mark, torch.text, file)):
            return (*torch.edits, longer)
        if not by_accelerator(file, goal):
            return self._plain(node, match, file, goal)
        whole = choice if choice is not None and choice.body is node else None
        in_device = is_device(file.parent(whole) if whole else call, file) or is_device_argument(whole or node, file)
        if whole and not rest and in_device and is_constant(whole.orelse, "cpu"):
            device = f"{torch.text}.accelerator.current_accelerator(check_available=True) or {mark}cpu{mark}"
            return (*torch.edits, file.replace(whole, device))
        outer = file.parent(call) if isinstance(call, ast.IfExp) else call
        if is_device(outer, file) and _runs_with_a_card(node, file) and (card := card_number(node, rest)):
            return (file.replace(node, card),)
        if not rest and isinstance(call, ast.IfExp) and is_device(outer, file):
            return (*torch.edits, file.replace(node, f"{torch.text}.accelerator.current_accelerator()"))
        return self._plain(node, match, file, goal)

    def _plain(self, node: ast.expr, match: re.Match[str], file: PythonFile, goal: Goal) -> Edits:
        """Write the device or its kind in place of its name."""
        prefix, mark, _, rest = match.groups()
        call = file.parent(node)
        if not rest and is_device(call, file):
            return self._made(node, call, file, goal)
        if not rest and is_device_argument(node, file):
            name = self.device(node, file, goal)
            return with_replacement(name, node, file).edits if name else ()
        of_card = not rest and (is_beside_cpu(node, file) or is_for_autocast(node, file))
        kind = self.device_type(node, file, goal, of_card)
        if kind is None:
            return ()
        if not rest:
            return with_replacement(kind, node, file).edits
        if more := fill_in_device(node, kind.text, mark, rest, file):
            return (*kind.edits, *more)
        start, _ = file.span(node)
        marks = [] if "f" in prefix.lower() else [file.insert(start, "f")]
        return (*kind.edits, *marks, Edit(start + match.start(3), start + match.end(3), f"{{{kind.text}}}"))

    def _made(self, node: ast.expr, call: ast.AST | None, file: PythonFile, goal: Goal) -> Edits:
        """Rewrite torch.device("cuda"), which may be the file's own device."""
        assert call is not None
        name = self.device(call, file, goal)
        if name is None:
            return ()
        if name.text != helpers.DEVICE or is_device_argument(call, file):
            return with_replacement(name, call, file).edits
        if by_accelerator(file, goal) and not is_beside_cpu(call, file):
            return (*name.edits, file.replace(call, helpers.MADE))
        kind = self.device_type(node, file, goal)
        return with_replacement(kind, node, file).edits if kind else ()

    def move(self, call: ast.Call, func: ast.Attribute, file: PythonFile, goal: Goal) -> Edits:
        if any(isinstance(value, ast.Starred) for value in call.args) or any(k.arg is None for k in call.keywords):
            return ()
        device, end = self.device(call, file, goal), file.span(func)[1]
        if device is None:
            return ()
        edits = [Edit(end - len("cuda"), end, "to")]
        if file.resolve(func.value):  # torch.nn.Module.cuda(model)
            return ()
        keyword = "device=" if _is_storage(func.value, file) else ""  # a storage's `to` takes only a keyword
        if keyword and call.args:
            edits.append(file.insert(file.span(call.args[0])[0], keyword))
        if len(call.args) > 1:
            edits.append(file.insert(file.span(call.args[1])[0], "non_blocking="))
        given_device = file.argument(call, 0, "device")
        if given_device is None:
            at = file.text.index("(", end) + 1
            more = ", " if call.keywords else ""
            return (*device.edits, *edits, file.insert(at, f"{keyword}{device.text}{more}"))
        if is_constant(given_device, None):
            return (*device.edits, *edits, file.replace(given_device, device.text))
        if _may_be_none(given_device, file):  # `cuda(None)` means the current card, `to(None)` no device
            source = file.source(given_device)
            choice = file.insert(file.span(given_device)[0], f"{device.text} if {source} is None else ")
            return (*device.edits, *edits, choice)
        return tuple(edits)

    def module(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        torch = _torch(node, file)
        return Text(helpers.MODULE, torch.edits if torch else ())

    def function_name(self, function: str, node: ast.AST, file: PythonFile, goal: Goal) -> Text:
        torch = _torch(node, file) or Text("torch")
        patched = function in goal.patched and not is_test_file(
            file.path
        )  # replaced in torch.cuda by the project's tests
        streams = function == "current_stream" or function in _CLASSES
        if by_accelerator(file, goal) and not patched and not (streams and "cuda_stream" in file.text):
            if function in _ACCELERATOR:
                return Text(f"{torch.text}.accelerator.{_ACCELERATOR[function]}", torch.edits)
            if function in _CLASSES:
                return Text(f"{torch.text}.{function}", torch.edits)
        return Text(f"{helpers.MODULE}.{function}" if function else helpers.MODULE, torch.edits)

    def function(self, part: ast.expr, function: str, file: PythonFile, goal: Goal) -> Text | None:
        torch = torch_name(file)
        if function == "OutOfMemoryError":
            return with_replacement(Text(f"{torch.text}.OutOfMemoryError", torch.edits), part, file)
        if _is_annotation(part, file):
            if function not in _CLASSES or key(goal.torch) < key(_CLASSES[function]):
                return None
            return with_replacement(Text(f"{torch.text}.{function}", torch.edits), part, file)
        if function == "is_available" and _asks_by_name(file, goal):
            choice = branch(file.parent(enclosing_call(part, file)) or part, file, goal)
            if choice is not None and choice.test is enclosing_call(part, file):
                return Text("torch.npu as well", (*torch.edits, _branch_for_npus(choice, torch.text, file)))
        return with_replacement(self.function_name(function, part, file, goal), part, file)

    def backend(self, node: ast.AST, file: PythonFile, goal: Goal) -> Text | None:
        torch = _torch(node, file)
        if torch is None:
            return None
        return Text(helpers.BACKEND, torch.edits)

    def backends(self, node: ast.AST, pairs: str, file: PythonFile, goal: Goal) -> Text | None:
        torch, mark = _torch(node, file), pairs[-1]
        others = pairs.replace("cuda:", "npu:").replace("nccl", "hccl")
        return torch and Text(f"{others} if hasattr({torch.text}, {mark}npu{mark}) else {pairs}", torch.edits)

    def keeps(self, node: ast.AST, file: PythonFile, goal: Goal) -> bool:
        if graph_around(node, file) is not None or _is_seeded_anyway(node, file) or _guards_what_stays(node, file):
            return True
        around = file.parent(node)
        if isinstance(around, ast.IfExp) and around.test is node and copies_device_name(around, file):
            return True
        if not _asks_by_name(file, goal):
            return False
        choice = branch(node, file, goal)
        if choice is not None and not any(ancestor is choice.test for ancestor in (node, *file.ancestors(node))):
            return True
        call = file.parent(node)  # a choice that gets one more alternative
        parents = list(file.ancestors(call))[:2] if isinstance(call, ast.Call) and call.func is node else []
        return any(
            isinstance(parent, ast.IfExp)
            and asked_in(parent, file) is call
            and names_cuda(parent.body, file)
            and is_from_cpu(parent, file)
            for parent in parents
        )

    def choose(self, added: Sequence[Edit], renamed: Sequence[Edit], file: PythonFile) -> Edits:
        return tuple(added)

    def finish(self, before: Document, after: Document, goal: Goal) -> Document:
        file = before.python
        accelerator = file is not None and by_accelerator(file, goal)
        return helpers.with_helpers(before, after, accelerator, goal.loads_torch_npu)


def _torch(node: ast.AST, file: PythonFile) -> Text | None:
    """Return the name of torch at a node, or None if nothing there imports it."""
    if torch_imports.written_at_top(node, file):
        return torch_name(file)
    name, _ = torch_imports.nearest(node, file)
    return Text(name) if name else None


def _runs_with_a_card(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a card's number may stand for the card. It may not in a file that is imported without a card."""
    return is_where_available(node, file) or file.function(node) is not file.tree


def _branch_for_npus(choice: ast.If, torch: str, file: PythonFile) -> Edit:
    """Return the edit that adds `elif ... torch.npu.is_available():` with the same body as for CUDA."""
    mark = quote_near(choice.body[0], file)
    start, end = file.line_start(choice.body[0]), file.line_end(choice.body[-1])
    body = re.sub(rf"(?<=[\"'])cuda|(?<=\b{torch}\.)cuda\b", "npu", file.text[start:end]).rstrip("\r\n")
    indent = file.indent(choice).removesuffix("el")
    condition = f"elif hasattr({torch}, {mark}npu{mark}) and {torch}.npu.is_available():"
    return file.insert_line(end, f"{indent}{condition}{file.newline}{body}")


def _is_seeded_anyway(node: ast.AST, file: PythonFile) -> bool:
    """Return whether torch.cuda.manual_seed_all(seed) stands beside torch.manual_seed(seed), which suffices."""
    if last_name(node) not in _SEEDS:
        return False
    if (file.resolve(node) or "").rpartition(".")[0] != "torch.cuda":
        return False
    around, seed = file.function(node), _arguments(node, file)
    seeds = (use for use in file.by_name.get("manual_seed", ()) if file.resolve(use) == "torch.manual_seed")
    is_plain = seed != "" and "cuda" not in seed  # a device's name would differ in the next run
    return is_plain and any(file.function(use) is around and _arguments(use, file) == seed for use in seeds)


def _guards_what_stays(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a question only guards seeds and switches, which do no harm on NPUs.

    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
        torch.backends.cuda.matmul.allow_tf32 = True
    """
    asked = enclosing_call(node, file) if isinstance(node, ast.expr) else node
    choice = file.parent(asked)
    if isinstance(choice, ast.BoolOp) and isinstance(choice.op, ast.And):
        asked, choice = choice, file.parent(choice)
    if not isinstance(choice, ast.If) or choice.test is not asked or choice.orelse or is_negated(node):
        return False
    return all(_is_switch(part, file) for part in choice.body)


def _is_switch(part: ast.stmt, file: PythonFile) -> bool:
    """Return whether a statement seeds what is seeded anyway, or sets a switch of CUDA's libraries."""
    if isinstance(part, ast.Assign):
        return all((file.resolve(target) or "").startswith("torch.backends.cu") for target in part.targets)
    return isinstance(part, ast.Expr) and isinstance(part.value, ast.Call) and _is_seeded_anyway(part.value.func, file)


def _arguments(func: ast.AST, file: PythonFile) -> str:
    call = file.parent(func)
    return ", ".join(file.source(argument) for argument in call.args) if isinstance(call, ast.Call) else ""


def _is_storage(value: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is the storage in `map_location=lambda storage, location: ...`, by whatever name."""
    function = next((ancestor for ancestor in file.ancestors(value) if isinstance(ancestor, ast.Lambda)), None)
    if function is None or [file.source(value)] != [parameter.arg for parameter in function.args.args[:1]]:
        return False
    call = next((ancestor for ancestor in file.ancestors(function) if isinstance(ancestor, ast.Call)), None)
    name = last_name(call.func) if call else ""
    return call is not None and "load" in name and file.argument(call, 1, "map_location") is function


def _may_be_none(given: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is a parameter that defaults to None and is never compared with it."""
    bound = file.bindings(given) if isinstance(given, ast.Name) else []
    default = bound[0].value if len(bound) == 1 and bound[0].kind == "parameter" else None
    name = re.escape(file.source(given))
    asked = rf"\b(?:if|assert|not|and|or)\s+{name}\s*(?:$|:|\)|,|\b(?:and|or|else)\b)|\b{name}\s+(?:is|or)\b"
    is_none = isinstance(default, ast.Constant) and default.value is None
    return is_none and not re.search(asked, file.source(file.function(given)), re.MULTILINE)


def _is_annotation(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a node is part of a type annotation or of a type alias."""
    child = node
    for parent in file.ancestors(node):
        if child is getattr(parent, "annotation", None) or child is getattr(parent, "returns", None):
            return True
        if isinstance(parent, ast.Subscript) and (file.resolve(parent.value) or "").startswith("typing."):
            return True  # an alias: IndexType = Union[int, torch.cuda.LongTensor]
        child = parent
    return False
