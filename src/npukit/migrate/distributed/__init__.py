"""Make a training script for one card distributed, or find the part of it that prevents this."""

from __future__ import annotations

import ast

from npukit.migrate.distributed.data import loader_of, sampled
from npukit.migrate.distributed.model import trained_model, wrapped
from npukit.migrate.distributed.parts import Unseen
from npukit.migrate.distributed.processes import process_group, saved_once, without_index
from npukit.migrate.goal import Goal
from npukit.migrate.training import step_loops
from npukit.source import Edit, PythonFile

__all__ = ["Unseen", "distributed"]
_LIBRARIES = ("torch.distributed", "accelerate", "deepspeed", "horovod", "lightning", "pytorch_lightning", "ignite")


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
