"""Examine one step operator by operator, after the recorded steps: which line calls what, and what does it depend on?

No times are taken here, because the examination slows the step down. Its results are joined to the recorded operators
by line and name.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from npukit.performance.recording.users_code import line_name, source_of, users_frames

RANDOM = torch.Tag.nondeterministic_seeded
WIDE = (torch.float64, torch.complex128)
FEW = 64  # elements: a smaller tensor costs nothing, whatever its type
# Files of torch between a call and the place where it is observed.
BETWEEN = (
    "torch/_tensor.py", "torch/_ops.py", "torch/_compile.py", "torch/_dynamo/eval_frame.py", "torch/functional.py",
    "torch/overrides.py", "torch/utils/_device.py",
)  # fmt: skip
Site = tuple[str, str]  # a line of the user's, and the operator that it calls


class StepExaminer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts calls by line and operator: how many, how many could be made once, and in which loops.

    >>> with StepExaminer() as examiner:
    ...     model(batch).sum().backward()
    >>> examiner.as_data()
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # By storage, which views share. Weak references prevent reuse of addresses.
        self._facts: dict[int, tuple[StorageWeakRef, _Fact]] = {}
        self._done = False
        self._calls: dict[Site, int] = defaultdict(int)
        self._constant: dict[Site, int] = defaultdict(int)
        self._direct: set[Site] = set()
        self._depth: dict[Site, int] = defaultdict(int)
        self._loops: dict[Site, set[str]] = defaultdict(set)
        self._wide: dict[str, int] = defaultdict(int)  # elements in float64, by the line they come from

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        if not self._done and torch._C._current_graph_task_id() == -1:  # except in a backward pass
            frame = sys._getframe(1)
            if func.namespace != "profiler" and (
                lines := [(outer.f_code.co_filename, outer.f_lineno) for outer in users_frames(frame)]
            ):
                self._take(func, tree_leaves((args, kwargs)), tree_leaves(results), lines, frame)
        return results

    def _take(
        self, func: Any, arguments: list[Any], results: list[Any], lines: list[tuple[str, int]], at: FrameType
    ) -> None:
        here = line_name(*lines[0])
        site = (here, f"{func.namespace}::{func._schema.name.partition('::')[2]}")
        inputs = [leaf for leaf in arguments if isinstance(leaf, torch.Tensor)]
        known = [self._fact(tensor) for tensor in inputs]
        constant = RANDOM not in func.tags and all(fact and fact.constant for fact in known)
        depth = {key: most for fact in known if fact for key, most in fact.depth.items()}
        for fact in known:
            for key, most in fact.depth.items() if fact else ():
                depth[key] = max(depth[key], most)
        depth[site] = depth.get(site, 0) + 1
        if not func._schema.is_mutable and _is_view(results, inputs):
            return
        self._calls[site] += 1
        self._constant[site] += constant
        if func._schema.is_mutable and not constant:
            self._no_longer_constant(results)
        self._depth[site] = max(self._depth[site], depth[site])
        self._loops[site] |= set(_loops(lines))
        if _calls_directly(at):
            self._direct.add(site)
        for tensor in results:
            if isinstance(tensor, torch.Tensor):
                origin = self._origin(tensor, inputs, known, here)
                reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
                self._facts[reference.cdata] = (reference, _Fact(constant, depth, origin, site))

    def _no_longer_constant(self, written: list[Any]) -> None:
        """What is made the same in each step, and then filled with what differs, cannot be made once."""
        for tensor in written:
            fact = self._fact(tensor) if isinstance(tensor, torch.Tensor) else None
            if fact and fact.constant:
                self._constant[fact.site] -= 1

    def _fact(self, tensor: torch.Tensor) -> _Fact | None:
        entry = self._facts.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry else None

    def _origin(self, result: torch.Tensor, inputs: list[torch.Tensor], known: list[_Fact | None], here: str) -> str:
        """The line from which float64 entered this tensor; empty if it has another type."""
        if result.dtype not in WIDE:
            return ""
        wide = (fact.origin for tensor, fact in zip(inputs, known, strict=True) if tensor.dtype in WIDE and fact)
        origin = next(filter(None, wide), here)
        if result.numel() >= FEW:
            self._wide[origin] += result.numel()
        return origin

    def leave(self) -> None:
        """Stop examining. If the script has entered a mode of its own meanwhile, only stop recording."""
        self._done = True
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def as_data(self) -> dict[str, Any]:
        """One row for each line and operator, and the lines that float64 comes from, most elements first."""
        rows = [
            {
                "line": line,
                "op": op,
                "calls": calls,
                "constant": self._constant[line, op],
                "direct": (line, op) in self._direct,
                "depth": self._depth[line, op],
                "loops": sorted(self._loops[line, op]),
            }
            for (line, op), calls in self._calls.items()
        ]
        return {"operators": rows, "float64": sorted(self._wide, key=lambda line: -self._wide[line])}


class _Fact:
    """What is known about a tensor: whether it is constant over steps, and how many calls of each line precede it."""

    __slots__ = ("constant", "depth", "origin", "site")

    def __init__(self, constant: bool, depth: dict[Site, int], origin: str, site: Site) -> None:
        self.constant, self.depth, self.origin, self.site = constant, depth, origin, site


def _is_view(results: list[Any], inputs: list[torch.Tensor]) -> bool:
    """Whether nothing was computed, because the result is a view of the input."""
    storages = {tensor.untyped_storage()._cdata for tensor in inputs}
    return all(isinstance(result, torch.Tensor) and result.untyped_storage()._cdata in storages for result in results)


def _calls_directly(frame: FrameType | None) -> bool:
    """Whether the user's own code called the operator, rather than a library on its behalf."""
    while frame is not None and frame.f_code.co_filename.endswith(BETWEEN):
        frame = frame.f_back
    return frame is not None and next(users_frames(frame), None) is frame


def _loops(lines: list[tuple[str, int]]) -> Iterator[str]:
    for file, line in lines:
        for loop in source_of(file).loops(line):
            yield line_name(file, loop)


def step_loops(frame: FrameType | None) -> list[str]:
    """The user's loops around this frame, which are the loops over steps if it is the optimizer's."""
    return list(_loops([(outer.f_code.co_filename, outer.f_lineno) for outer in users_frames(frame)]))
