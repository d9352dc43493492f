"""Observe every operator that torch's dispatcher calls, including collectives and torch_npu's own operators."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.precision.recording.files import Frame
from npukit.precision.recording.modules import ModuleCall, tensors_in
from npukit.precision.recording.tensors import Hollow, Text

PREFIXES = {"aten": "Aten", "npu": "NPU", "c10d": "Distributed", "_c10d_functional": "Distributed"}
# They compute nothing, and each device uses them differently.
# fmt: off
_SKIPPED = {
    "alias", "clone", "detach", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
    "new_empty_strided", "lift_fresh", "lift", "_unsafe_view", "_reshape_alias", "is_same_size", "is_pinned",
    "_local_scalar_dense", "resize_", "set_", "record_stream", "_pin_memory",
}
# fmt: on
_ALLOCATES = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
# Memory that an operator keeps for its own backward pass, in a private format and partly uninitialised. These are
# the names of such arguments and the positions of such results.
_PRIVATE_ARGUMENTS = {"workspace", "reserve", "reserve_space", "reserveSpace", "weight_buf"}
_PRIVATE_RESULTS = {"mkldnn_rnn_layer": (3,), "_cudnn_rnn": (3, 4), "miopen_rnn": (3, 4)}
# Arguments that they write to although their schemas do not say so: the running mean and variance.
_SILENT_WRITES = dict.fromkeys(("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"), (3, 4))
_COPIES = {torch.ops.aten.clone.default, torch.ops.aten._pin_memory.default}
_NO_OPERATORS = {"prim", "prims", "profiler", "debugprims", "inductor"}

# They overwrite their output without reading it.
_OVERWRITES = re.compile(
    r"(copy|fill|zero|normal|uniform|bernoulli|random|exponential|geometric|cauchy|log_normal|_foreach_copy|_foreach_zero)_"
    r"|.*(gather|recv|reduce_scatter|scatter|alltoall).*_"
)

Record = Callable[["OperatorCall"], None]


@dataclass(frozen=True)
class Operator:
    """What an operator's schema says about it."""

    name: str  # its name in a dump
    computes: bool  # False if it only creates views of the same memory
    is_collective: bool
    overwrites: bool  # writes to its first argument or to `out` without reading it
    writes: tuple[int, ...] | None  # the arguments it writes to; None: all of them, although its schema does not say so
    silent_writes: tuple[int, ...]  # arguments that its schema does not describe
    keyword_writes: tuple[str, ...]
    allocates: bool  # returns uninitialised memory
    private_arguments: tuple[int, ...]
    private_results: tuple[int, ...]


class OperatorCall:
    """One call of an operator, which callbacks see before and after it runs."""

    __slots__ = ("arguments", "given", "keywords", "module", "operator", "phase", "result", "row", "stack")

    def __init__(self, operator: Operator, arguments: Any, keywords: Any) -> None:
        self.operator, self.arguments, self.keywords = operator, arguments, keywords
        self.result: Any = None
        self.row = ""  # its name in the dump; empty if it is not recorded
        self.module: ModuleCall | None = None
        self.stack: tuple[Frame, ...] = ()
        self.phase = "forward"
        self.given: Text = []  # arguments and keywords, as described in the row

    def read(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keywords. Of those that are overwritten or private, only the dtype and shape are recorded."""
        hidden = (0, *self.operator.private_arguments) if self.operator.overwrites else self.operator.private_arguments
        if not hidden:
            return list(self.arguments), self.keywords
        return [_hollow(argument) if place in hidden else argument for place, argument in enumerate(self.arguments)], {
            name: _hollow(value) if name == "out" else value for name, value in self.keywords.items()
        }

    def covered(self, tensor: Tensor) -> int:
        """How many elements of a tensor that the operator writes to certainly have a new value."""
        if self.operator.overwrites:
            return tensor.numel()
        if self.operator.name == "Aten.index_put_" and not any(self.arguments[3:4]) and len(self.arguments[1]) == 1:
            index = self.arguments[1][0]
            if index.dtype is torch.bool:
                return int(index.sum()) * (tensor.numel() // max(1, int(index.numel())))
            return int(index.unique().numel()) * (tensor.numel() // max(1, len(tensor)))
        return 0

    def written(self) -> Iterator[Tensor]:
        """The tensors that the operator writes to."""
        writes, given = self.operator.writes, self.arguments
        if writes is None:
            yield from tensors_in(given)
        else:
            for place in (*writes, *self.operator.silent_writes):
                if place < len(given):
                    yield from tensors_in(given[place])
        for name in self.operator.keyword_writes:
            if name in self.keywords:
                yield from tensors_in(self.keywords[name])


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls back before and after every operator that computes something, and after those that only move data."""

    def __init__(
        self,
        before: Record,
        after: Record,
        moved: Callable[[Any, Any], None],
        allocated: Callable[[Any], None],
        wanted: Callable[[], bool],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before, self._after, self._moved, self._allocated = before, after, moved, allocated
        self._wanted = wanted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and any(subclass.__torch_dispatch__ is not Tensor.__torch_dispatch__ for subclass in types):
            return NotImplemented  # such as DTensor: operators on its local tensors come here later
        if not self._wanted():
            return func(*args, **kwargs)
        operator = operator_of(func)
        if not operator.computes:
            result = func(*args, **kwargs)
            if func in _COPIES:
                self._moved(args[0], result)
            elif operator.allocates:
                self._allocated(result)
            return result
        call = OperatorCall(operator, args, kwargs)
        self._before(call)
        call.result = func(*args, **kwargs)
        self._after(call)
        return call.result


@functools.cache
def operator_of(function: Any) -> Operator:
    """Look up the properties of an operator.

    >>> operator_of(torch.ops.aten.add_.Tensor).writes
    (0,)
    """
    schema = function._schema
    namespace, _, name = schema.name.partition("::")
    written = [argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments]
    silent = name.endswith("_") and not any(argument.alias_info is not None for argument in schema.arguments)
    return Operator(
        f"{PREFIXES[namespace]}.{name}" if namespace in PREFIXES else f"Torch.{namespace}__{name}",
        _computes(namespace, name, schema),
        PREFIXES.get(namespace) == "Distributed",
        not (namespace == "aten" and "scatter" in name)
        and (_OVERWRITES.fullmatch(name) is not None or function._overloadname.endswith("out")),
        None if silent or namespace == "c10d" else tuple(n for n, writes in enumerate(written) if writes),
        _SILENT_WRITES.get(name, ()),
        tuple(argument.name for argument, writes in zip(schema.arguments, written, strict=True) if writes),
        namespace == "aten" and name in _ALLOCATES,
        tuple(place for place, argument in enumerate(schema.arguments) if argument.name in _PRIVATE_ARGUMENTS),
        _PRIVATE_RESULTS.get(name, ()),
    )


def _computes(namespace: str, name: str, schema: Any) -> bool:
    if namespace != "aten":
        return namespace not in _NO_OPERATORS
    views = any(returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns)
    return not (views or name in _SKIPPED)


def _hollow(value: Any) -> Any:
    if isinstance(value, Tensor):
        return Hollow(value)
    return [_hollow(item) for item in value] if isinstance(value, list | tuple) else value
