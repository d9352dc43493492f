"""Every operator that torch's dispatcher calls: forward, backward, optimizer, collectives, torch_npu's own."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.precision.recording.files import Frame
from npukit.precision.recording.modules import ModuleCall, tensors_in

PREFIXES = {"aten": "Aten", "npu": "NPU", "c10d": "Distributed", "_c10d_functional": "Distributed"}
# They compute nothing, and each device uses them as it likes.
# fmt: off
_SKIPPED = {
    "alias", "clone", "detach", "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty",
    "new_empty_strided", "lift_fresh", "lift", "_unsafe_view", "_reshape_alias", "is_same_size", "is_pinned",
    "_local_scalar_dense", "resize_", "set_", "record_stream", "_pin_memory",
}
# fmt: on
_COPIES = {torch.ops.aten.clone.default, torch.ops.aten._pin_memory.default}
_NO_OPERATORS = {"prim", "prims", "profiler", "debugprims", "inductor"}
_OUTSIDE = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2]), "<frozen", "<string>", "<__array")
_MOST_FRAMES = 24

# What they write to held nothing that they read.
_OVERWRITES = re.compile(
    r"(copy|fill|zero|normal|uniform|random|exponential|geometric|cauchy|log_normal|_foreach_copy|_foreach_zero)_"
    r"|.*(gather|recv|reduce_scatter|scatter|alltoall).*_"
)

Record = Callable[["OperatorCall"], None]


class OperatorCall:
    """One call of an operator: `before` it runs, and `after`."""

    def __init__(self, function: Any, arguments: Any, keywords: Any) -> None:
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.result: Any = None
        self.name, self._writes_all = names_of(function)
        self.row = ""  # its name in the dump; empty: not wanted
        self.module: ModuleCall | None = None
        self.stack: tuple[Frame, ...] = ()
        self.phase = "forward"
        self.given: tuple[Any, Any] = ([], {})  # arguments and keywords, described

    @property
    def is_collective(self) -> bool:
        return self.name.startswith("Distributed.")

    def read(self) -> tuple[list[Any], dict[str, Any]]:
        """Arguments and keywords; of what is only overwritten, nothing but a tensor of its shape without values."""
        if not overwrites(self.function):
            return list(self.arguments), self.keywords
        return [_hollow(self.arguments[0]), *self.arguments[1:]], {
            name: _hollow(value) if name == "out" else value for name, value in self.keywords.items()
        }

    def written(self) -> Iterator[Tensor]:
        """The tensors that it writes to."""
        for declared, given in zip(self.function._schema.arguments, self.arguments, strict=False):
            if self._writes_all or (declared.alias_info is not None and declared.alias_info.is_write):
                yield from tensors_in(given)
        for declared in self.function._schema.arguments:
            if declared.alias_info is not None and declared.alias_info.is_write and declared.name in self.keywords:
                yield from tensors_in(self.keywords[declared.name])


class OperatorMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls back before and after every operator that computes something, and when one only moves values."""

    def __init__(
        self, before: Record, after: Record, moved: Callable[[Any, Any], None], wanted: Callable[[], bool]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._before, self._after, self._moved, self._wanted = before, after, moved, wanted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if types and any(each.__torch_dispatch__ is not Tensor.__torch_dispatch__ for each in types):
            return NotImplemented  # a DTensor and its like: the operators on what they hold come here later
        if not self._wanted():
            return func(*args, **kwargs)
        if not computes(func):
            result = func(*args, **kwargs)
            if func in _COPIES:
                self._moved(args[0], result)
            return result
        call = OperatorCall(func, args, kwargs)
        self._before(call)
        call.result = func(*args, **kwargs)
        self._after(call)
        return call.result


@functools.cache
def computes(function: Any) -> bool:
    """Whether an operator computes anything, rather than looking at the same memory in another way."""
    namespace, _, name = function._schema.name.partition("::")
    if namespace in _NO_OPERATORS:
        return False
    if namespace != "aten":
        return True
    returned = function._schema.returns
    views = any(each.alias_info is not None and not each.alias_info.is_write for each in returned)
    return not (views or name in _SKIPPED)


@functools.cache
def names_of(function: Any) -> tuple[str, bool]:
    """An operator's name in a dump, and whether it writes to all its tensors without saying so."""
    namespace, _, name = function._schema.name.partition("::")
    named = f"{PREFIXES[namespace]}.{name}" if namespace in PREFIXES else f"Torch.{namespace}__{name}"
    declared = any(each.alias_info is not None for each in function._schema.arguments)
    return named, (name.endswith("_") and not declared) or namespace == "c10d"


@functools.cache
def overwrites(function: Any) -> bool:
    """Whether an operator writes to its first argument, or to `out`, without reading it."""
    namespace, _, name = function._schema.name.partition("::")
    if namespace == "aten" and "scatter" in name:
        return False
    return _OVERWRITES.fullmatch(name) is not None or function._overloadname.endswith("out")


def _hollow(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta") if value.device.type == "meta" else torch.empty_like(value, device="meta")
    return [_hollow(each) for each in value] if isinstance(value, list | tuple) else value


def user_stack() -> tuple[Frame, ...]:
    """The frames of the caller that are neither torch's nor ours, innermost first."""
    found: list[Frame] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < _MOST_FRAMES:
        code = frame.f_code
        if not code.co_filename.startswith(_OUTSIDE):
            found.append((code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return tuple(found)
