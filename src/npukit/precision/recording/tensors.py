"""Describe arguments and results as msprobe's dumps do. A tensor's statistics are computed once and reused."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.nn import Parameter

from npukit.precision.recording.batch import MANY, Cell, StatisticsBatch
from npukit.precision.recording.statistics import undisturbed

Save = Callable[[str, Tensor], str]
Text = list["str | Cell | Late"]  # JSON in pieces, because the figures of tensors arrive later
_SCALARS, _LISTS = (bool, int, float, str), (list, tuple)  # as a constant, since a union would be created at each call
_STRIDED = torch.strided
_NOTHING = '"Max": null, "Min": null, "Mean": null, "Norm": null'


class Hollow:
    """A tensor of which only dtype and shape are recorded, such as one that is about to be overwritten."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Late:
    """A place in a row for a value that arrives later, or never."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: Text = ["null"]

    @property
    def text(self) -> str:
        return joined(self.pieces)


def joined(pieces: Text) -> str:
    """The text of all pieces, once statistics have been fetched."""
    return "".join([piece if type(piece) is str else piece.text for piece in pieces])  # type: ignore[union-attr]


@functools.lru_cache(4096)
def quoted(text: str) -> str:
    """A JSON string."""
    return json.dumps(text)


@functools.lru_cache(4096)
def _head(dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> str:
    grad = "true" if requires_grad else "false"
    return f'{{"type": "torch.Tensor", "dtype": "{dtype}", "shape": {list(map(int, shape))}, "requires_grad": {grad}, '


@functools.lru_cache(4096)
def _tail(maker: str, file: str) -> str:
    made = f', "From": {quoted(maker)}' if maker else ""
    return f'{made}, "data_name": {quoted(file)}}}' if file else f"{made}}}"


@functools.lru_cache(4096)
def _scalar(value: bool | float | str, kind: str) -> str:  # the type is part of the key because 1 == True
    return f'{{"type": "{kind}", "value": {json.dumps(value)}}}'


def _other(value: Any) -> str:
    known = isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return json.dumps({"type": kind, "value": str(value) if known else None})


class _Memory:
    """A storage and what is known about it."""

    __slots__ = ("_weak", "cells", "maker", "unwritten", "writes")

    def __init__(self, storage: UntypedStorage) -> None:
        self._weak = storage._weak_ref()  # holding it prevents its address from being reused
        self.cells: dict[tuple[Any, ...], Cell] = {}
        self.writes = 0  # versions written by operators
        self.maker = ""  # the row that last wrote to it
        self.unwritten = 0  # bytes that may still hold uninitialised data

    def __del__(self) -> None:
        UntypedStorage._free_weak_ref(self._weak)  # type: ignore[no-untyped-call]

    @property
    def is_gone(self) -> bool:
        return UntypedStorage._expired(self._weak)  # type: ignore[return-value]


class Tensors:
    """Describes values, and remembers which tensors it has already described."""

    def __init__(self, save: Save | None, by_operator: bool, fresh: bool = False) -> None:
        self._save, self._by_operator, self._fresh = save, by_operator, fresh
        self._batch = StatisticsBatch()
        self._memories: dict[int, _Memory] = {}
        self._held: dict[int, tuple[Tensor, int, int, Text]] = {}  # by identity, with version and address

    @property
    def waiting(self) -> int:
        """How many tensors have been started since the last `fetch`."""
        return self._batch.waiting

    def describe(self, value: Any, name: str, into: Text) -> None:
        """Append a tensor, a scalar or a nested structure. `name` is the file of a saved tensor, without suffix."""
        if isinstance(value, Tensor):
            self._tensor(value, name, into)
        elif isinstance(value, _LISTS):
            self._list(value, name, into)
        elif isinstance(value, dict):
            mark = "{"
            for key, item in value.items():
                into.append(f"{mark}{quoted(str(key))}: ")
                self.describe(item, f"{name}.{key}" if self._save else "", into)
                mark = ", "
            into.append("}" if value else "{}")
        elif value is None:
            into.append("null")
        elif isinstance(value, _SCALARS):
            into.append(_scalar(value, type(value).__name__))
        elif isinstance(value, Hollow):
            into.append(f"{_head(value.tensor.dtype, value.tensor.shape, value.tensor.requires_grad)}{_NOTHING}}}")
        else:
            into.append(_other(value))

    def _list(self, values: Sequence[Any], name: str, into: Text) -> None:
        if len(values) >= MANY and isinstance(values[0], Tensor) and id(values[0]) not in self._held:
            self.measure(values)
        mark = "["
        for place, item in enumerate(values):
            into.append(mark)
            self.describe(item, f"{name}.{place}" if self._save else "", into)
            mark = ", "
        into.append("]" if values else "[]")

    def measure(self, values: Iterable[Any]) -> None:
        """Start on the tensors among values with few launches, so that `describe` finds them already known."""
        if self._fresh:
            return
        by_dtype: dict[torch.dtype, dict[tuple[int, Any], tuple[_Memory, Tensor]]] = {}
        for value in values:
            tensor = local(value) if isinstance(value, Tensor) else None
            if tensor is not None and can_describe(tensor) and (memory := self._memory(tensor)):
                key = _key(tensor, memory)
                if key is not None and key not in memory.cells:
                    by_dtype.setdefault(tensor.dtype, {})[id(memory), key] = memory, tensor
        for group in by_dtype.values():
            cells = self._batch.add_all([tensor for _, tensor in group.values()])
            for (_, key), (memory, _), cell in zip(group, group.values(), cells, strict=True):
                memory.cells[key] = cell

    def hold(self, tensors: Iterable[Tensor | None]) -> None:
        """Like `measure`, but quicker for `describe` to find. The tensors are kept alive until `release`."""
        if self._by_operator or self._save:
            return self.measure(tensors)
        alike: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            if tensor is None or id(tensor) in self._held or not can_describe(tensor) or tensor.is_inference():
                continue
            alike.setdefault(tensor.dtype, []).append(tensor)
        for group in alike.values():
            for member, cell in zip(group, self._batch.add_all(group), strict=True):
                head = _head(member.dtype, member.shape, member.requires_grad)
                self._held[id(member)] = member, member._version, member.data_ptr(), [head, cell, "}"]

    def release(self) -> None:
        """Stop keeping tensors alive."""
        self._held = {}

    def allocated(self, tensor: Tensor) -> None:
        """Note that a tensor was allocated but not written."""
        if isinstance(tensor, Tensor) and (memory := self._memory(tensor)):
            memory.unwritten = tensor.untyped_storage().nbytes()

    def wrote(self, tensor: Tensor, covered: Callable[[Tensor], int]) -> None:
        """Note that an operator has written to this tensor, which invalidates what is known about it.

        `covered` returns how many elements were certainly written. It is called only for uninitialised memory.
        """
        if memory := self._memory(tensor):
            memory.writes += 1
            if memory.unwritten:
                with undisturbed():
                    memory.unwritten = max(0, memory.unwritten - covered(tensor) * tensor.itemsize)

    def made(self, tensor: Tensor, row: str) -> None:
        """Note the row that created or wrote to this tensor."""
        if row and (memory := self._memory(tensor)):
            memory.maker = row

    def maker(self, tensor: Tensor) -> str:
        """The row that made a tensor or its memory; empty if unknown."""
        memory = self._memory(tensor)
        return memory.maker if memory else ""

    def fetch(self) -> tuple[Callable[[], None], bool]:
        """Start fetching the statistics of all tensors so far, like `StatisticsBatch.take`."""
        self._memories = {key: memory for key, memory in self._memories.items() if not memory.is_gone}
        return self._batch.take()

    def forget(self) -> None:
        """Forget everything, as after a step, because optimizers may write to memory unnoticed."""
        self.release()
        for memory in self._memories.values():
            memory.cells.clear()

    def begin_step(self) -> None:
        """Start a new step: rows of earlier steps are in other dumps."""
        for memory in self._memories.values():
            memory.maker = ""

    def _tensor(self, tensor: Tensor, name: str, into: Text) -> None:
        held = self._held.get(id(tensor))
        if held is not None and held[1] == tensor._version and held[2] == tensor.data_ptr():
            into += held[3]
            return
        head = _head(tensor.dtype, tensor.shape, tensor.requires_grad)
        kind = type(tensor)
        values = tensor if kind is Tensor or kind is Parameter else local(tensor)
        if not can_describe(values):
            into.append(f"{head}{_NOTHING}}}")
            return
        memory = self._memory(values)
        if memory is not None and memory.unwritten:  # uninitialised memory has no values
            into.append(f"{head}{_NOTHING}}}")
            return
        file = self._save(name, values) if self._save else ""
        key = None if self._fresh or memory is None else _key(values, memory)
        cell = memory.cells.get(key) if memory is not None and key is not None else None
        if cell is None:
            cell = self._batch.add(values)
            if memory is not None and key is not None:
                memory.cells[key] = cell
        maker = memory.maker if memory is not None else ""
        into += (head, cell, _tail(maker, file) if maker or file else "}")

    def _memory(self, tensor: Tensor) -> _Memory | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors and some subclasses
            return None
        memory = self._memories.get(storage._cdata)
        if memory is None:
            memory = self._memories[storage._cdata] = _Memory(storage)
        return memory


def _key(tensor: Tensor, memory: _Memory) -> tuple[Any, ...] | None:
    """The key that tensors with the same memory and values share; None if they must be read each time."""
    try:
        version = tensor._version
    except RuntimeError:  # inference tensors have no version
        return None
    # The statistics of contiguous data do not depend on its shape, so a view shares those of its base.
    layout: Any = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
    dtype = tensor.dtype
    if dtype.is_complex and tensor.is_conj():
        layout = (*tensor.shape, "conjugate")
    return memory.writes, version, tensor.storage_offset(), dtype, layout


def local(tensor: Tensor) -> Tensor:
    """The local part of a DTensor; any other tensor itself."""
    kind = type(tensor)
    return tensor if kind is Tensor or kind is Parameter else getattr(tensor, "_local_tensor", tensor)


def storage_of(tensor: Tensor) -> int | None:
    """What identifies a tensor's memory while it is in use."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors and some subclasses
        return None


def can_describe(tensor: Tensor) -> bool:
    """Whether the tensor has plain values to read."""
    kind = type(tensor)
    return (
        (kind is Tensor or kind is Parameter or kind.__torch_dispatch__ is Tensor.__torch_dispatch__)
        and tensor.layout is _STRIDED
        and not tensor.is_quantized
        and not tensor.is_meta
        and tensor.numel() > 0
    )
