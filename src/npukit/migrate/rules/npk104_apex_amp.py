"""Replace apex.amp with torch.amp.

before:           model = amp.initialize(model, opt_level="O1")
after (npu):      model.forward = torch.amp.autocast("npu", dtype=torch.float16)(model.forward)
after (portable): model.forward = torch.amp.autocast("npu" if hasattr(torch, "npu") else "cuda", dtype=torch.float16)(model.forward)

O0 is removed. `with amp.scale_loss(...)` becomes `SCALER.scale(loss).backward()`, `optimizer.step()` becomes
`SCALER.step(optimizer)` and `SCALER.update()`, gradients are unscaled before they are clipped, and the scaler's state
replaces that of amp. A file is rewritten as a whole or not at all. It is not rewritten if it uses another part of amp,
if amp is optional (there is a backward without it), or if the loss, the step or the clipping is in another file.
"""  # noqa: E501

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate import head
from npukit.migrate.decision import stays
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Effort, Rule
from npukit.migrate.styles import style_of
from npukit.migrate.styles.style import Text, torch_name
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK104",
    "apex-amp",
    words=("apex",),
    fixes=True,
    why="apex cannot be built without CUDA. torch.amp provides the same features.",
    remedy="Use torch.amp.autocast and torch.amp.GradScaler.",
    effort=Effort(15, 5),
)

_Edits = list[Edit]


@rule.on(ast.ImportFrom)
def check(node: ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    if node.module != "apex" or not any(alias.name == "amp" for alias in node.names):
        return
    if stays(node, file, goal):
        return
    yield rule.finding((file, node), "apex.amp works on CUDA devices only", edits=_edits(node, file, goal) or ())


def _edits(node: ast.ImportFrom, file: PythonFile, goal: Goal) -> _Edits | None:
    """All edits of the file; None where some use of amp cannot be rewritten."""
    if len(node.names) != 1 or not file.alone_on_lines(node) or not goal.names_devices:
        return None
    edits: _Edits = [_removed(node, file)]
    losses: list[ast.Call] = []
    uses = _uses(node, file)
    trains = False
    for use in uses:
        attribute = file.parent(use)
        call = file.parent(attribute) if isinstance(attribute, ast.Attribute) else None
        if not isinstance(attribute, ast.Attribute) or not isinstance(call, ast.Call) or call.func is not attribute:
            return None
        new = _use(attribute.attr, call, file, goal)
        if new is None:
            return None
        edits += new
        losses += [call] if attribute.attr == "scale_loss" else []
        trains = trains or attribute.attr != "initialize" or len(call.args) > 1
    steps = _steps(losses, file)
    if not uses or (trains and not steps):
        return None
    for step in steps:
        start = file.span(step)[0]
        indent = file.text[file.line_start(step) : start]
        optimizer = file.source(step).removesuffix(".step()")
        edits.append(file.replace(step, f"SCALER.step({optimizer}){file.newline}{indent}SCALER.update()"))
    return [*_scaler(file, goal).edits, *edits] if trains else edits


def _uses(node: ast.ImportFrom, file: PythonFile) -> list[ast.Name]:
    """Every read of the name that this import gives to amp."""
    names = (each for each in file.nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
    return [name for name in names if any(binding.node is node for binding in file.bindings(name))]


def _scaler(file: PythonFile, goal: Goal) -> Text:
    """SCALER, made below the imports."""
    kind = style_of(goal).device_type(file.tree, file, goal, of_card=True) or Text(
        ""
    )  # a file with a model loads torch
    torch = torch_name(file)
    line = f"SCALER = {torch.text}.amp.GradScaler({kind.text})"
    below = head.below_torch(file)
    lines = (file.insert_line(below, ""), file.insert_line(below, line))
    return Text("SCALER", (*torch.edits, *kind.edits, *lines))


def _removed(node: ast.ImportFrom, file: PythonFile) -> Edit:
    parent = file.parent(node)
    if isinstance(parent, ast.Module):
        return Edit(file.line_start(node), file.line_end(node), "")
    return file.replace(node, "pass")


def _use(name: str, call: ast.Call, file: PythonFile, goal: Goal) -> _Edits | None:
    if name == "initialize":
        return _initialize(call, file, goal)
    if name == "scale_loss":
        return _scale_loss(call, file)
    if name in ("state_dict", "load_state_dict"):
        return [file.replace(call.func, f"SCALER.{name}")]
    if name == "master_params" and len(call.args) == 1:
        statement = file.statement(call)
        if not file.alone_on_lines(statement):
            return None
        optimizer = file.source(call.args[0])
        start = file.span(statement)[0]
        indent = file.text[file.line_start(statement) : start]
        return [
            file.insert(start, f"SCALER.unscale_({optimizer}){file.newline}{indent}"),
            file.replace(call, f'[p for group in {optimizer}.param_groups for p in group["params"]]'),
        ]
    return None


def _initialize(call: ast.Call, file: PythonFile, goal: Goal) -> _Edits | None:
    """model, optimizer = amp.initialize(model, optimizer, opt_level=...): cast in the model's forward."""
    statement = file.parent(call)
    level = file.argument(call, None, "opt_level")
    model = call.args[0] if call.args else None
    if not isinstance(statement, ast.Assign) or level is None or not isinstance(model, (ast.Name, ast.Attribute)):
        return None
    if ast.unparse(statement.targets[0]).strip("()") != ", ".join(ast.unparse(each) for each in call.args):
        return None
    if isinstance(level, ast.Constant) and level.value == "O0":
        return [file.replace(statement, "pass")]
    enabled = "" if isinstance(level, ast.Constant) else f', enabled={file.source(level)} != "O0"'
    kind = style_of(goal).device_type(call, file, goal, of_card=True)
    if kind is None:
        return None
    torch = torch_name(file).text
    forward = f"{file.source(model)}.forward"
    text = f"{forward} = {torch}.amp.autocast({kind.text}, dtype={torch}.float16{enabled})({forward})"
    return [*kind.edits, file.replace(statement, text)]


def _scale_loss(call: ast.Call, file: PythonFile) -> _Edits | None:
    """with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()"""
    block = next((each for each in file.ancestors(call) if isinstance(each, ast.With)), None)
    if block is None or len(block.items) != 1 or len(block.body) != 1 or len(call.args) != 2 or call.keywords:
        return None
    name = block.items[0].optional_vars
    if not isinstance(name, ast.Name) or file.source(block.body[0]) != f"{name.id}.backward()":
        return None
    if not _always_scaled(block, file):
        return None
    return [file.replace(block, f"SCALER.scale({file.source(call.args[0])}).backward()")]


def _always_scaled(block: ast.With, file: PythonFile) -> bool:
    """Whether every gradient of the function comes from a scaled loss, and is clipped only through amp."""
    function = file.function(block)
    for parent in file.ancestors(block):
        if parent is function:
            break
        if isinstance(parent, ast.If):
            return False
    source = file.source(function) if function is not file.tree else file.text
    if source.count(".backward(") != source.count("scale_loss("):
        return False
    return source.count("clip_grad") == source.count("master_params(")


def _steps(losses: list[ast.Call], file: PythonFile) -> list[ast.Expr]:
    """The steps of the optimizers whose losses are scaled; none where some step is in another function."""
    found: list[ast.Expr] = []
    for loss in losses:
        text = f"{file.source(loss.args[1])}.step()"
        steps = [node for node in file.nodes if isinstance(node, ast.Expr) and file.source(node) == text]
        here = [step for step in steps if file.function(step) is file.function(loss) and file.alone_on_lines(step)]
        if not here or len(here) != len(steps):
            return []
        found += [step for step in here if step not in found]
    return found
