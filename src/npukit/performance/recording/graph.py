"""Find autograd graphs that are kept from step to step, as by `losses.append(loss)`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from npukit.performance.recording.users_code import line_name, source_of, users_frames

MAX_NODES = 200_000  # nodes to count at most


def live_nodes() -> int:
    """The nodes of all graphs that some tensor keeps alive.

    >>> live_nodes()
    0
    """
    return _reached([item.grad_fn for item in gc.get_objects() if type(item) is torch.Tensor])


def _reached(stack: list[Any]) -> int:
    """The nodes of the graphs that end in these nodes, including them."""
    seen: set[Any] = set()
    while stack and len(seen) < MAX_NODES:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
    return len(seen)


def memory_in_use() -> int:
    """Bytes of tensors on the accelerator; on the CPU, of the whole process."""
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    if accelerator is not None:
        return int(torch.get_device_module(accelerator.type).memory_allocated())
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0


def holder() -> tuple[str, str]:
    """The variable of the running functions that holds most of the graphs, and the line that adds to it."""
    variables = list(_variables())
    holding = [(size, name, file) for name, value, file in variables if (size := _graphs(value)) > 1]
    for _, name, file in sorted(holding, reverse=True, key=lambda entry: entry[0]):
        if (line := source_of(file).grows(name)) is not None:
            return name, line_name(file, line)
    nodes = live_nodes()
    for name, value, file in variables:  # a state that is carried on, including its history
        line = source_of(file).hands_on(name)
        if line is not None and 2 * _reached([tensor.grad_fn for tensor in _tensors(value)]) > nodes:
            return name, line_name(file, line)
    return "", ""


def _variables() -> Iterator[tuple[str, Any, str]]:
    """The user's variables and the attributes of objects in them, with the file of the function."""
    for frame in users_frames(sys._getframe(1)):
        file = frame.f_code.co_filename
        for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
            yield name, value, file
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict) and not isinstance(value, type(sys)):
                yield from ((attribute, held, file) for attribute, held in list(attributes.items()))


def _graphs(value: Any) -> int:
    """How many graphs a variable holds: one per tensor of a container, or one per addition in a tensor's chain."""
    if isinstance(value, torch.Tensor):
        return _chain(value.grad_fn)
    return sum(tensor.grad_fn is not None for tensor in _tensors(value))


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensor itself, or the tensors directly in a container."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set) or type(value).__name__ == "deque":
        return [item for item in value if isinstance(item, torch.Tensor)]
    return []


def _chain(node: Any) -> int:
    """The number of consecutive additions to a running total."""
    length = 0
    while node is not None and type(node).__name__.startswith("AddBackward") and length < MAX_NODES:
        length += 1
        node = node.next_functions[0][0]
    return length
