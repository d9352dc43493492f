"""Replace apex's fused layers and optimizers with those of torch that compute the same.

before:           from apex.normalization import FusedLayerNorm
after (npu):      from torch.nn import LayerNorm as FusedLayerNorm
after (portable): from torch.nn import LayerNorm as FusedLayerNorm

FusedLayerNorm becomes LayerNorm, FusedRMSNorm RMSNorm, FusedAdam AdamW and FusedSGD SGD, on every device: torch has
kernels of its own for them. The name stays, since other files may import it from here. FusedAdam decays no weights by
default, and FusedRMSNorm adds 1e-5, so the classes of torch are told so. FusedAdam keeps its averages in fp32; AdamW
keeps them in the type of the parameters, which differs if those are half precision. An import stays if one of its names
is used otherwise than in a call that both understand, or if the code does without apex where it is missing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from npukit.facts.versions import key
from npukit.migrate.decision import stays
from npukit.migrate.goal import Goal
from npukit.migrate.rule import Rule
from npukit.migrate.training import tolerates_failure
from npukit.report import Finding
from npukit.source import Edit, PythonFile

rule = Rule(
    "NPK106",
    "apex-layers",
    words=("apex",),
    fixes=True,
    why="apex cannot be built without CUDA. torch computes the same.",
    remedy="Use the class of the same name in torch.nn or torch.optim.",
    supersedes=("NPK401",),
)


class _Class(NamedTuple):
    """A class of torch that takes the place of one of apex."""

    name: str
    positional: int  # how many arguments mean the same by position
    keywords: tuple[str, ...]
    given: str = ""  # one that has another default, and so must be given
    default: str = ""  # apex's default for it
    since: str = ""


_OPTIMIZER = ("params", "lr", "weight_decay")
_CLASSES = {
    "FusedLayerNorm": _Class("LayerNorm", 3, ("normalized_shape", "eps", "elementwise_affine")),
    "FusedRMSNorm": _Class("RMSNorm", 3, ("normalized_shape", "eps", "elementwise_affine"), "eps", "1e-5", "2.4"),
    "FusedAdam": _Class("AdamW", 2, (*_OPTIMIZER, "betas", "eps", "amsgrad"), "weight_decay", "0.0"),
    "FusedSGD": _Class("SGD", 6, (*_OPTIMIZER, "momentum", "dampening", "nesterov")),
}
_MODULES = {
    "apex.normalization": "torch.nn",
    "apex.normalization.fused_layer_norm": "torch.nn",
    "apex.optimizers": "torch.optim",
}


@rule.on(ast.ImportFrom)
def check(node: ast.ImportFrom, file: PythonFile, goal: Goal) -> Iterator[Finding]:
    classes = [_CLASSES.get(alias.name) for alias in node.names] if node.module in _MODULES else []
    if not classes or tolerates_failure(node, file) or stays(node, file, goal):
        return
    edits: list[Edit] = []
    names: list[str] = []
    for alias, new in zip(node.names, classes, strict=True):
        calls = _calls(alias.asname or alias.name, new, file) if new and key(goal.torch) >= key(new.since) else None
        # Without a call here, who calls it elsewhere would get torch's default.
        if new is None or calls is None or (new.given and not calls):
            return
        names.append(f"{new.name} as {alias.asname or alias.name}")
        edits += [edit for call in calls for edit in _completed(call, new, file)]
    module = _MODULES[node.module or ""]
    yield rule.finding(
        (file, node),
        f"{node.module} works on CUDA devices only",
        edits=(file.replace(node, f"from {module} import {', '.join(names)}"), *edits),
    )


def _calls(name: str, new: _Class, file: PythonFile) -> list[ast.Call] | None:
    """The calls of an imported name; None where one of its uses may mean something else to torch's class."""
    found: list[ast.Call] = []
    for use in file.by_name.get(name, ()):
        call = file.parent(use)
        if not isinstance(call, ast.Call) or call.func is not use or not call.args + call.keywords:
            return None
        if len(call.args) > new.positional or any(isinstance(each, ast.Starred) for each in call.args):
            return None
        if any(keyword.arg not in new.keywords for keyword in call.keywords):
            return None
        found.append(call)
    return found


def _completed(call: ast.Call, new: _Class, file: PythonFile) -> Iterator[Edit]:
    """The argument for which torch has another default than apex."""
    given = {*new.keywords[: len(call.args)], *(keyword.arg for keyword in call.keywords)}
    if new.given and new.given not in given:
        end = max(file.span(each)[1] for each in (*call.args, *call.keywords))
        yield file.insert(end, f", {new.given}={new.default}")
