"""Wrap the model of a script once it is on its device, and reach its own attributes through `.module`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.distributed.parts import Unseen, line_after, parameter_for
from npukit.migrate.styles.style import torch_name
from npukit.migrate.training import method, step_loops
from npukit.source import Edit, PythonFile

_MOVES = ("to", "cuda", "npu", "to_empty")
# fmt: off
_OWN = frozenset((  # attributes that work the same on a wrapped model
    "train", "eval", "training", "parameters", "named_parameters", "buffers", "named_buffers", "modules",
    "named_modules", "children", "named_children", "zero_grad", "requires_grad_", "forward", "to", "cuda", "npu",
    "cpu", "half", "float", "double", "bfloat16", "apply", "module", "register_forward_hook", "no_sync",
))
# fmt: on


def trained_model(file: PythonFile) -> ast.Name:
    """Return the only variable whose parameters are trained."""
    models: dict[str, ast.Name] = {}
    optimizers = [call for call in file.of_type(ast.Call) if (file.resolve(call.func) or "").startswith("torch.optim.")]
    optimizers = [call for call in optimizers if ".lr_scheduler" not in (file.resolve(call.func) or "")]
    for call in optimizers:
        argument = file.argument(call, 0, "params")
        is_plain = method(argument) == "parameters" if argument else False
        owner = argument.func.value if is_plain else None  # type: ignore[union-attr]
        if not isinstance(owner, ast.Name):
            raise Unseen(call, "model", "it is unclear which model is trained", "Wrap that model by hand.")
        models[owner.id] = owner
    loop = next(iter(step_loops(file)))
    if not models:
        raise Unseen(
            loop, "optimizer", "the optimizer is created in another file or by a function", "Wrap the model by hand."
        )
    if len(models) > 1:
        raise Unseen(optimizers[1], "models", "more than one model is trained", "Wrap each model by hand.")
    return next(iter(models.values()))


def wrapped(model: ast.Name, file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that wrap a model below the last statement that makes or moves it."""
    bindings = [binding.node for binding in file.bindings(model) if binding.kind == "assign"]
    moved = [call for call in file.of_type(ast.Call) if _is_move(call, model, file)]
    if not bindings or not moved:
        raise Unseen(
            model,
            "device",
            f"the place where {model.id} is moved to the device is not in this file",
            "Wrap it by hand after it was moved.",
        )
    block = file.block_of(file.statement(bindings[0]))
    last: ast.stmt | None = None
    for node in (*bindings, *moved):
        around = [ancestor for ancestor in (node, *file.ancestors(node)) if ancestor in block]
        if not around:
            raise Unseen(node, "device", f"{model.id} is created in one place and moved in another", "Wrap it by hand.")
        statement = around[0]
        assert isinstance(statement, ast.stmt)
        last = statement if last is None or statement.lineno > last.lineno else last
    assert last is not None
    if not file.alone_on_lines(last) and not hasattr(last, "body"):
        raise Unseen(last, "statement", "several statements share a line", "Put each statement on its own line.")
    wrap = f"{model.id} = {torch_name(file).text}.nn.parallel.DistributedDataParallel({model.id})"
    yield line_after(last, wrap, file)
    yield from _through_module(model, file.line_end(last), file)


def _is_move(call: ast.Call, model: ast.Name, file: PythonFile) -> bool:
    """Return whether a call moves the model, as `model.to(device)` does."""
    if method(call) not in _MOVES or not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value
    if isinstance(owner, ast.Name) and file.names.lookup(owner) == file.names.lookup(model):
        return True
    statement = file.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    same = (t for t in targets if isinstance(t, ast.Name) and file.names.lookup(t) == file.names.lookup(model))
    return any(same) and isinstance(statement, ast.Assign) and statement.value is call


def _through_module(
    model: ast.Name | ast.arg, below: int, file: PythonFile, seen: frozenset[ast.AST] = frozenset()
) -> Iterator[Edit]:
    """Yield the edits that insert `.module` before the model's own attributes, also in called functions."""
    own_scope = file.names.lookup(model)[0]
    for use in file.uses(model):
        start, end = file.span(use)
        if start < below and file.names.scope_of(use) is own_scope and isinstance(model, ast.Name):
            continue
        parent = file.parent(use)
        is_own = isinstance(parent, ast.Attribute) and parent.attr not in _OWN
        is_saved = isinstance(parent, ast.Call) and use in parent.args and file.resolve(parent.func) == "torch.save"
        if is_own or is_saved:
            yield file.insert(end, ".module")
        elif (parameter := parameter_for(use, file)) is not None and parameter not in seen:
            yield from _through_module(parameter, 0, file, seen | {parameter})
