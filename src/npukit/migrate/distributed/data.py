"""Give each process its share of the training data, in a different order in each epoch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from npukit.migrate.distributed.parts import Unseen, line_before, parameter_for
from npukit.migrate.styles.style import torch_name
from npukit.migrate.training import LOOPS, Loop, enclosing_loops, has_double_star, is_true
from npukit.source import Edit, PythonFile
from npukit.source.nodes import last_name

_WRAPPERS = ("enumerate", "tqdm", "iter", "track", "trange")


def loader_of(loop: Loop, file: PythonFile) -> tuple[ast.Call, list[Edit]]:
    """Return the DataLoader of a training loop, and the edits that give each epoch an order of its own."""
    name = loop.iter if isinstance(loop, ast.For) else None
    while isinstance(name, ast.Call) and name.args and last_name(name.func) in _WRAPPERS:
        name = name.args[0]
    if not isinstance(name, ast.Name):
        raise Unseen(
            loop,
            "loader",
            "the data loader of this training loop is not in this file",
            "Give its loader a DistributedSampler.",
        )
    edits = _set_epoch(loop, name, file)
    values = list(_values_of(name, file))
    loaders = [value for value, _ in values if isinstance(value, ast.Call) and _is_loader(value, file)]
    if len(loaders) != 1 or len(values) != 1:
        raise Unseen(loop, "loader", f"it is unclear what {name.id} is", "Give its loader a DistributedSampler.")
    for _, at in values:
        edits += _set_epoch_at_call(at, name, file) if not edits else []
    return loaders[0], edits


def _is_loader(call: ast.Call, file: PythonFile) -> bool:
    return (file.resolve(call.func) or "").startswith("torch.utils.data.") and last_name(call.func) == "DataLoader"


def _values_of(name: ast.Name, file: PythonFile, depth: int = 4) -> Iterator[tuple[ast.expr, ast.Call | None]]:
    """Yield what a variable may hold, with the call that passed it if it is a parameter."""
    for binding in file.bindings(name):
        if binding.kind == "assign" and binding.value is not None:
            yield binding.value, None
        elif binding.kind == "parameter" and isinstance(binding.node, ast.arg) and depth:
            for argument in _arguments_for(binding.node, file):
                call = next(ancestor for ancestor in file.ancestors(argument) if isinstance(ancestor, ast.Call))
                if isinstance(argument, ast.Name):
                    yield from ((value, call) for value, _ in _values_of(argument, file, depth - 1))


def _arguments_for(parameter: ast.arg, file: PythonFile) -> Iterator[ast.expr]:
    for call in file.of_type(ast.Call):
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            if parameter_for(argument, file) is parameter:
                yield argument


def _set_epoch(loop: Loop, loader: ast.Name, file: PythonFile) -> list[Edit]:
    """Return the edits that call set_epoch in the loop around a loop."""
    around = [outer for outer in enclosing_loops(loop, file) if outer is not loop]
    return [_epoch_line(around[0], loader.id, file)] if around else []


def _set_epoch_at_call(call: ast.Call | None, loader: ast.Name, file: PythonFile) -> list[Edit]:
    """Return the edits that call set_epoch in the loop around the call of the function that trains an epoch."""
    if call is None:  # a module's variable is read by functions that may be called in a loop
        function = file.function(loader)
        users = (use for use in file.of_type(ast.Call) if isinstance(use.func, ast.Name))
        within = [use for use in users if any(b.node is function for b in file.bindings(use.func))]  # type: ignore[arg-type]
        name = loader.id
    else:
        within = [call]
        name = next(
            (argument.id for argument in [*call.args, *(k.value for k in call.keywords)]
             if isinstance(argument, ast.Name) and getattr(parameter_for(argument, file), "arg", "") == loader.id),
            loader.id,
        )  # fmt: skip
    loops = [next(enclosing_loops(use, file), None) for use in within]
    return [_epoch_line(loop, name, file) for loop in loops if loop is not None]


def _epoch_line(loop: Loop, loader: str, file: PythonFile) -> Edit:
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        raise Unseen(
            loop,
            "epochs",
            "this loop does not count epochs",
            "Call set_epoch() of the loader's sampler in every epoch.",
        )
    if not file.alone_on_lines(loop.body[0]) and not isinstance(loop.body[0], LOOPS):
        raise Unseen(loop, "statement", "several statements share a line", "Put each statement on its own line.")
    return line_before(loop.body[0], f"{loader}.sampler.set_epoch({loop.target.id})", file)


def sampled(loader: ast.Call, file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that give a loader a DistributedSampler instead of `shuffle`."""
    data = file.argument(loader, 0, "dataset")
    given = {keyword.arg for keyword in loader.keywords}
    if has_double_star(loader) or data is None or given & {"sampler", "batch_sampler"} or len(loader.args) > 3:
        raise Unseen(
            loader,
            "loader",
            "the order in which this loader reads its data is not in this file",
            "Give it a DistributedSampler by hand.",
        )
    statement = file.statement(loader)
    name = file.source(data)
    if not isinstance(data, (ast.Name, ast.Attribute)):  # so that it is created only once
        name = f"{last_name(getattr(statement, 'targets', [loader.func])[0]) or 'train'}_data"
        yield line_before(statement, f"{name} = {file.source(data)}", file)
        yield file.replace(data, name)
    shuffle = file.argument(loader, 2, "shuffle")
    order = "" if is_true(shuffle) else f", shuffle={file.source(shuffle) if shuffle else False}"
    sampler = f"sampler={torch_name(file).text}.utils.data.DistributedSampler({name}{order})"
    keyword = next((candidate for candidate in loader.keywords if candidate.arg == "shuffle"), None)
    if keyword or shuffle:
        yield file.replace(keyword or shuffle, sampler)  # type: ignore[arg-type]
    else:
        last = [*loader.args, *loader.keywords][-1]
        yield file.insert(file.span(last)[1], f", {sampler}")
