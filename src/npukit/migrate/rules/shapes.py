"""Shapes that change from step to step: from the data (NPK501), the last batch (NPK502), the longest sequence (NPK503),
a tensor that grows (NPK504). NPK510 and NPK511 come from a trace, which trace.py reads.
"""

from __future__ import annotations

import ast

from npukit.migrate.rule import Findings, Goal, PythonFile, described
from npukit.migrate.training import (
    enclosing_loop,
    enclosing_loops,
    has_double_star,
    inside,
    is_true,
    method,
    step_loops,
)

_FUNCTIONS = {"nonzero", "masked_select", "unique", "unique_consecutive", "argwhere"}
_METHODS = {"nonzero", "masked_select", "unique_consecutive", "argwhere"}  # .unique() is also a method of pandas
_LONGEST = "sequences are padded to the longest one in each batch"


@described("NPK501").on_call({*_FUNCTIONS, "where"})
def from_data(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    name = file.resolve(call.func) or ""
    last = name.removeprefix("torch.")
    one_sided_where = name == "torch.where" and len(call.args) == 1 and not call.keywords
    of_torch = name.startswith("torch.") and last in _FUNCTIONS
    is_method = not name and method(call) in _METHODS and "torch" in file.text
    if (of_torch or is_method or one_sided_where) and _in_step(call, file):
        what = f"the output shape of {last if name else method(call)} depends on the data"
        yield described("NPK501").finding((file, call), what)


def _in_step(node: ast.AST, file: PythonFile) -> bool:
    """Return whether a call runs in every step, in a `forward` or in a training loop."""
    function = file.function(node)
    if getattr(function, "name", "") in ("forward", "training_step", "loss", "get_loss"):
        return True
    return any(loop in step_loops(file) for loop in enclosing_loops(node, file))


@described("NPK502").on_function("torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader")
def last_batch(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    batch, sampler = file.argument(call, 1, "batch_size"), file.argument(call, 3, "sampler")
    single = batch is None or (isinstance(batch, ast.Constant) and batch.value in (1, None))
    for_training = isinstance(sampler, ast.Name) and "train" in sampler.id
    shuffled = is_true(file.argument(call, 2, "shuffle")) or for_training
    if shuffled and not single and not has_double_star(call) and file.argument(call, 8, "drop_last") is None:
        yield described("NPK502").finding((file, call), "the last batch of an epoch has a different shape")


@described("NPK503").on_function("torch.nn.utils.rnn.pad_sequence")
def padded(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    yield described("NPK503").finding((file, call), _LONGEST)


@described("NPK503").on(ast.keyword, says=("padding",))
def padded_by_tokenizer(keyword: ast.keyword, file: PythonFile, goal: Goal) -> Findings:
    """Report a tokenizer that pads to the longest text of the batch: tokenizer(texts, padding=True)"""
    value, call = keyword.value, file.parent(keyword)
    if not isinstance(value, ast.Constant) or value.value not in (True, "longest"):
        return
    if not isinstance(call, ast.Call) or file.argument(call, None, "pad_to_multiple_of") is not None:
        return
    name = file.source(call.func).lower()
    if "token" in name or "processor" in name or (file.resolve(call.func) or "").startswith("transformers."):
        yield described("NPK503").finding((file, call), _LONGEST)


@described("NPK504").on_function("torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "torch.vstack")
def growing(call: ast.Call, file: PythonFile, goal: Goal) -> Findings:
    assign = file.parent(call)
    if not isinstance(assign, ast.Assign) or not call.args:
        return
    joined = call.args[0]
    names = {file.source(element) for element in getattr(joined, "elts", ())}
    name, loop = file.source(assign.targets[0]), enclosing_loop(assign, file)
    if name in names and loop is not None and not _set_anew(name, assign, loop, file):
        yield described("NPK504").finding((file, assign), "a tensor grows in every iteration of a loop")


def _set_anew(name: str, grows: ast.Assign, loop: ast.AST, file: PythonFile) -> bool:
    """Return whether the loop also assigns another value to a name, so that it does not grow in each turn."""
    targets = [loop.target] if isinstance(loop, ast.For) else []
    for node in inside(loop):
        if isinstance(node, ast.Assign) and node is not grows:
            targets += node.targets
        elif isinstance(node, ast.For):
            targets.append(node.target)
    return any(name == file.source(part) for target in targets for part in ast.walk(target) if hasattr(part, "lineno"))
