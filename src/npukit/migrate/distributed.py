"""Make a training script for one card distributed, or find the part of it that prevents this.

Each process gets its share of the data in a different order in each epoch; the model is wrapped once it is on its
device, and its own attributes are reached through `.module`; one process saves.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from npukit.migrate.goal import Goal
from npukit.migrate.styles import style_of
from npukit.migrate.styles.helpers import is_own_constant
from npukit.migrate.styles.style import Text, torch_name
from npukit.migrate.torch_imports import below_torch
from npukit.migrate.training import LOOPS, Loop, enclosing_loops, has_double_star, is_true, method, step_loops
from npukit.source import Edit, PythonFile
from npukit.source.nodes import last_name

_LIBRARIES = ("torch.distributed", "accelerate", "deepspeed", "horovod", "lightning", "pytorch_lightning", "ignite")
_WRAPPERS = ("enumerate", "tqdm", "iter", "track", "trange")
_MOVES = ("to", "cuda", "npu", "to_empty")
# fmt: off
_OWN = frozenset((  # attributes that work the same on a wrapped model
    "train", "eval", "training", "parameters", "named_parameters", "buffers", "named_buffers", "modules",
    "named_modules", "children", "named_children", "zero_grad", "requires_grad_", "forward", "to", "cuda", "npu",
    "cpu", "half", "float", "double", "bfloat16", "apply", "module", "register_forward_hook", "no_sync",
))
# fmt: on
_KIND = re.compile(r"""f(["'])\{(?:\w*DEVICE(?:_TYPE)?|.*\.type)\}:0\1""")  # f"{DEVICE_TYPE}:0"


class Unseen(Exception):
    """A necessary part of the script, such as its loader or model, that cannot be identified."""

    def __init__(self, node: ast.AST, part: str, what: str, remedy: str) -> None:
        super().__init__(what)
        self.node, self.part, self.what, self.remedy = node, part, what, remedy


def distributed(file: PythonFile, goal: Goal) -> list[Edit]:
    """Return the edits that make training distributed. There are none if a file does not train, or does so already."""
    loops = step_loops(file)
    in_use = any(name.startswith(_LIBRARIES) for name in file.imported) or "DistributedDataParallel" in file.text
    if not loops or in_use:
        return []
    model = trained_model(file)
    edits = [*wrapped(model, file), *process_group(file, goal)]
    for loop in loops:
        loader, epochs = loader_of(loop, file)
        edits += [*sampled(loader, file), *epochs]
    for call in file.of_type(ast.Call):
        if file.resolve(call.func) == "torch.save":
            edits += saved_once(call, file)
    return [*dict.fromkeys([*edits, *without_index(file)])]


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


def saved_once(call: ast.Call, file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that put a statement, or the `with open(...)` around it, under a condition for one process."""
    statement = file.statement(call)
    for ancestor in file.ancestors(call):
        if isinstance(ancestor, ast.With):
            statement = ancestor
        elif isinstance(ancestor, (ast.FunctionDef, *LOOPS, ast.If)):
            break
    start, end = file.span(statement)
    inner = [node for node in ast.walk(statement) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    if not file.alone_on_lines(statement) or any(string.lineno != string.end_lineno for string in inner):
        raise Unseen(statement, "statement", "this statement cannot be indented", "Run it only where get_rank() is 0.")
    indent = file.indent(statement)
    yield line_before(statement, f"if {torch_name(file).text}.distributed.get_rank() == 0:", file)
    line = file.line_start(statement)
    while line < end:
        yield file.insert(line if line > start else start, "\t" if "\t" in indent else "    ")
        line = file.text.find("\n", line) + 1 or end


def process_group(file: PythonFile, goal: Goal) -> Iterator[Edit]:
    """Yield the edits that join the process group at the start and leave it at the end."""
    set_device = style_of(goal).function_name("set_device", file.tree, file, goal)
    torch = torch_name(file).text
    backend = style_of(goal).backend(file.tree, file, goal) or Text('"hccl"')
    yield from dict.fromkeys([*set_device.edits, *backend.edits])
    lines = (
        f'{set_device.text}(int(os.environ["LOCAL_RANK"]))',
        f"{torch}.distributed.init_process_group({backend.text})",
    )
    leave = f"{torch}.distributed.destroy_process_group()"
    if not any(isinstance(node, ast.Import) and any(a.name == "os" and not a.asname for a in node.names)
               for node in file.tree.body):  # fmt: skip
        first = next(
            node for node in file.tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) and not _is_future(node)
        )
        yield line_before(first, "import os", file)
    guard = _main_guard(file)
    if guard is not None:
        yield from (line_before(guard.body[0], line, file) for line in lines)
        yield line_after(guard.body[-1], leave, file)
    else:
        yield file.insert_line(_head_end(file), file.newline + file.newline.join(lines))
        yield file.insert_line(len(file.text), leave)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def _main_guard(file: PythonFile) -> ast.If | None:
    guards = (node for node in file.tree.body if isinstance(node, ast.If) and "__name__" in file.source(node.test))
    return next(guards, None)


def _head_end(file: PythonFile) -> int:
    """Return the offset below the imports and below the constant that names the device."""
    end = below_torch(file)
    for node in file.tree.body:
        if isinstance(node, ast.Assign) and is_own_constant(node, file):
            end = max(end, file.line_end(node))
    return end


def without_index(file: PythonFile) -> Iterator[Edit]:
    """Yield the edits that turn card 0 into the card of the process, which is the current one."""
    for node in file.nodes:
        if isinstance(node, ast.Constant) and node.value in ("npu:0", "cuda:0") and not _in_string(node, file):
            yield file.replace(node, repr(str(node.value)[:-2]).replace("'", file.source(node)[0]))
        elif isinstance(node, ast.JoinedStr) and len(node.values) == 2 and _KIND.fullmatch(file.source(node)):
            yield file.replace(node, file.source(node)[3:-4])
        elif isinstance(node, ast.IfExp) and getattr(node.body, "value", "") == 0 and _is_device(node, file):
            yield file.replace(node.body, f"{torch_name(file).text}.accelerator.current_accelerator()")
        elif isinstance(node, ast.Call) and method(node) in ("cuda", "npu", "set_device", "to") and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and type(first.value) is int:
                raise Unseen(node, "card", f"card {first.value} is hard-coded", "Select the card by LOCAL_RANK.")


def _is_device(choice: ast.IfExp, file: PythonFile) -> bool:
    """Return whether a choice is a device: torch.device(0 if torch.accelerator.is_available() else "cpu")"""
    call = file.parent(choice)
    return isinstance(call, ast.Call) and file.resolve(call.func) == "torch.device"


def _in_string(node: ast.AST, file: PythonFile) -> bool:
    return isinstance(file.parent(node), (ast.JoinedStr, ast.FormattedValue))


def line_before(statement: ast.stmt, text: str, file: PythonFile) -> Edit:
    return file.insert_line(file.line_start(statement), file.indent(statement) + text)


def line_after(statement: ast.stmt, text: str, file: PythonFile) -> Edit:
    return file.insert_line(file.line_end(statement), file.indent(statement) + text)


def parameter_for(argument: ast.AST, file: PythonFile) -> ast.arg | None:
    """Return the parameter of a function in this file that receives an argument."""
    parent = file.parent(argument)
    name = parent.arg if isinstance(parent, ast.keyword) else None
    call = file.parent(parent) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        return None
    for binding in file.bindings(call.func):
        if isinstance(binding.node, ast.FunctionDef):
            parameters = [*binding.node.args.posonlyargs, *binding.node.args.args]
            if name is None and argument in call.args and call.args.index(argument) < len(parameters):
                return parameters[call.args.index(argument)]
            return next((parameter for parameter in parameters if parameter.arg == name), None)
    return None
