"""Replace torch.cuda functions with their counterparts.

before:           if torch.cuda.is_available(): torch.cuda.synchronize()
after (npu):      if torch.npu.is_available(): torch.npu.synchronize()
after (portable): if torch.accelerator.is_available(): torch.accelerator.synchronize()

Names are followed through imports and aliases. A name that torch.npu does not have is reported and not changed.
The portable style writes torch.accelerator where the project's torch has it for NPUs, torch.Stream and torch.Event. For
other functions, such as those about memory, it takes `torch.npu if hasattr(torch, "npu") else torch.cuda`, so that
nothing changes without torch_npu. manual_seed_all stays beside torch.manual_seed, which seeds every device.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.facts.torch_npu.names import names_of
from npukit.facts.versions import key
from npukit.migrate import lookup
from npukit.migrate.cuda_files import evidence_for_file
from npukit.migrate.decision import cuda_only_parts, is_kept, why_kept
from npukit.migrate.evidence import ABOUT_THE_CARD
from npukit.migrate.graphs import graph_around
from npukit.migrate.patches import is_test_file
from npukit.migrate.questions import asked_for_cards
from npukit.migrate.rule import Edit, Effort, Finding, Findings, Goal, PythonFile, Rule, Severity
from npukit.migrate.styles import style_of
from npukit.migrate.styles.helpers import spelled_out
from npukit.migrate.styles.npu import RENAMED
from npukit.migrate.styles.style import enclosing_call

rule = Rule(
    "NPK101",
    "cuda-functions",
    words=("cuda",),
    fixes=True,
    why='A torch without CUDA support raises "Torch not compiled with CUDA enabled".',
    remedy="Call the same function of torch.npu, or of torch.get_device_module(device), which works on every device.",
    effort=Effort(15, 5),
)

_IN_CODE = re.compile(r"""\.cuda\(|["']cuda["':]|["']nccl["']""")
_OTHER_RULES = {"amp"}
_DIFFERENT = {"get_device_capability": "it returns None on an NPU, so comparisons with it raise"}
_PRIVATE = {"_lazy_init", "_lazy_call", "_is_in_bad_fork"}  # which the list of public names leaves out
_OUT_OF_MEMORY_SINCE = "2.5"  # torch.OutOfMemoryError, which all devices raise
_SKIPS = ("skipif", "skipIf", "skipUnless", "skip", "skipTest")
# text before, CUDA's name, and text after, in "no CUDA"
_MISSED = (
    re.compile(r"(^[\"'])(CUDA)( is (?:not available|unavailable|required))"),
    re.compile(r"(^[\"'])(CUDA)( (?:not available|unavailable|required|not found))"),
    re.compile(
        r"([Rr]equires?|[Nn]eeds?|[Nn]eeding|[Ww]ithout)( (?:a )?CUDA(?: device| GPU)?)(?=$|[\"'.,;:)]| for | to )"
    ),
)


@rule.on(ast.Module)
def check(module: ast.Module, file: PythonFile, goal: Goal) -> Findings:
    names = lookup.cuda_names(file)
    if evidence := evidence_for_file(file):
        if names or _IN_CODE.search(file.text):
            blocks = evidence.kind != "name" and not is_test_file(file.path)
            severity = Severity.warning if blocks else Severity.note
            place = (file, names[0][0] if names else file.tree.body[0])
            yield _kept_finding(place, f"{file.path.name} is for CUDA only", evidence.sentence, severity)
        return
    parts = list(cuda_only_parts(file).items())
    for part, part_evidence in parts[: 1 if is_test_file(file.path) else None]:
        more = f" and {len(parts) - 1} more tests" if is_test_file(file.path) and len(parts) > 1 else ""
        verb = "are" if more else "is"
        yield _kept_finding(
            (file, part), f"{getattr(part, 'name', 'it')}{more} {verb} for CUDA only", part_evidence.sentence
        )
    graphs: set[ast.AST] = set()
    for node, _ in names:
        graph = graph_around(node, file) if goal.portable else None
        if graph is None:
            yield from _check(node, file, goal)
        elif graph not in graphs:
            graphs.add(graph)
            yield _kept_for_graphs(graph, node, file, goal)


def _kept_finding(
    place: tuple[PythonFile, ast.AST], what: str, why: str, severity: Severity = Severity.note
) -> Finding:
    remedy = "Check that it is not needed on an NPU."
    if severity is Severity.warning:
        remedy = "If it is needed on an NPU, replace what it imports there, and migrate it again."
    return rule.finding(place, what, why=f"{why} It was left as it is.", remedy=remedy, severity=severity)


def _kept_for_graphs(graph: ast.AST, node: ast.AST, file: PythonFile, goal: Goal) -> Finding:
    return rule.finding(
        (file, node),
        f"{getattr(graph, 'name', file.path.name)} is about CUDA graphs",
        why=f"{_reason_without_counterpart('CUDAGraph', goal)} What is captured was left with it.",
        remedy="Rewrite it by hand, or run without CUDA graphs on an NPU.",
        severity=Severity.warning,
    )


def _check(node: ast.Attribute | ast.Name, file: PythonFile, goal: Goal) -> Findings:
    part, function = _function(node, file)
    if function in _OTHER_RULES:
        return
    condition = enclosing_call(node, file) if function == "is_available" else None
    if function == "device_count":
        condition = asked_for_cards(node, file)
    if any(ancestor in cuda_only_parts(file) for ancestor in file.ancestors(node)):
        return
    if condition is not None and (reason := why_kept(condition, file)):
        if is_test_file(file.path) and cuda_only_parts(file):  # which the note about these tests tells
            return
        yield rule.finding(
            (file, node),
            f"torch.cuda.{function}() decides about code for CUDA only",
            why=reason,
            remedy="Check that the other branch is right on an NPU.",
            severity=Severity.note,
        )
        return
    if is_kept(node, file, goal):
        return
    if function == "is_available" and _is_printed(enclosing_call(node, file), file):
        return
    why = (
        _reason_without_counterpart(function, goal)
        or _empty_property(node, function, file)
        or _part_of_a_graph(function, file, goal)
    )
    if why:
        lacks = "a different name" if function in RENAMED else "no exact counterpart"
        yield rule.finding(
            (file, node), f"torch.cuda.{function} has {lacks} in torch.npu", why=why, remedy="Rewrite it by hand."
        )
        return
    new = style_of(goal).function(part, function, file, goal)
    if new is not None:
        yield rule.finding(
            (file, node),
            f"torch.cuda{'.' + function if function else ''} requires a CUDA device",
            remedy=f"Use {spelled_out(new.text)}.",
            edits=(*new.edits, *_reworded_reason(enclosing_call(node, file), file, goal)),
        )


def _function(node: ast.Attribute | ast.Name, file: PythonFile) -> tuple[ast.expr, str]:
    """Return the part of a dotted name that is torch.cuda.NAME, and NAME."""
    part: ast.expr = node
    while isinstance(part, ast.Attribute) and (file.resolve(part) or "").count(".") > 2:
        part = part.value
    name = file.resolve(part) or ""
    if isinstance(part, ast.Name) and name.count(".") > 2 and not name.startswith("torch.cuda.amp."):
        return part, name.rpartition(".")[2]  # from torch.cuda.memory import empty_cache, which torch.cuda has as well
    return part, name.removeprefix("torch.cuda").lstrip(".").split(".")[0]


def _reason_without_counterpart(function: str, goal: Goal) -> str:
    if function in _DIFFERENT:
        return f"torch.npu has a function of this name, but {_DIFFERENT[function]}."
    if goal.portable and function in RENAMED:
        return f"torch.npu calls it {RENAMED[function]}, so no single name works on both."
    if function == "OutOfMemoryError" and key(goal.torch) < key(_OUT_OF_MEMORY_SINCE):
        return "torch.OutOfMemoryError, which all devices raise, is new in torch 2.5."
    known = (
        not function
        or function in names_of("npu", goal.target.torch_npu)
        or function in _PRIVATE
        or function in RENAMED
        or function == "OutOfMemoryError"
    )
    return "" if known else f"torch.npu has no {function}."


def _empty_property(node: ast.expr, function: str, file: PythonFile) -> str:
    """Return why a property says nothing on NPUs: get_device_properties(0).multi_processor_count"""
    read = file.parent(enclosing_call(node, file)) if function == "get_device_properties" else None
    if not isinstance(read, ast.Attribute) or read.attr not in ABOUT_THE_CARD:
        return ""
    return f"{read.attr} is None for an NPU; its properties have cube_core_num and vector_core_num."


def _part_of_a_graph(function: str, file: PythonFile, goal: Goal) -> str:
    """Return why a function belongs to a CUDAGraph that is kept: torch.cuda.graph(g)"""
    stays = goal.portable and function in ("graph", "graphs", "graph_pool_handle") and "CUDAGraph" in file.text
    return _reason_without_counterpart("CUDAGraph", goal) if stays else ""


def _is_printed(node: ast.expr, file: PythonFile) -> bool:
    """Return whether a value is only printed: print("CUDA available:", torch.cuda.is_available())"""
    parent = file.parent(node)
    text = file.parent(parent) if isinstance(parent, ast.FormattedValue) else parent
    if isinstance(text, ast.Call) and node in text.args:
        parts: list[ast.expr] = text.args[: text.args.index(node)]
    else:
        parts = text.values if isinstance(text, ast.JoinedStr) else []
    texts = [str(part.value).lower() for part in parts if isinstance(part, ast.Constant)]
    return any("cuda" in label and re.search(r"[\s:]", label) for label in texts)  # a label, not a key like "use_cuda"


def _reworded_reason(condition: ast.expr, file: PythonFile, goal: Goal) -> Iterator[Edit]:
    """Yield the edits to the reason of a skipped test whose condition is migrated."""
    for text in _reasons(condition, file):
        source, start = file.source(text), file.span(text)[0]
        for number, pattern in enumerate(_MISSED):
            if match := pattern.search(source):
                yield Edit(
                    start + match.start(2), start + match.end(2), _in_message(number, style_of(goal).accelerator)
                )
                break


def _in_message(number: int, one: str) -> str:
    return (f"An {one}" if number == 0 else one) if number < 2 else f" an {one}"


def _reasons(condition: ast.expr, file: PythonFile) -> list[ast.Constant]:
    """Return the texts of @pytest.mark.skipif(condition, reason="...") and of `if condition: pytest.skip("...")`."""
    around = file.parent(condition)
    while isinstance(around, (ast.UnaryOp, ast.Compare)):
        around = file.parent(around)
    call: ast.AST | None = around
    if isinstance(around, ast.If) and len(around.body) == 1 and isinstance(around.body[0], ast.Expr):
        call = around.body[0].value
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") not in _SKIPS:
        return []
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "reason")]
    return [argument for argument in given if isinstance(argument, ast.Constant) and isinstance(argument.value, str)]
