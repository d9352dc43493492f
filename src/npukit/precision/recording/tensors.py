"""Describe arguments and results as msprobe's dumps do; the statistics of a tensor are computed once while it lasts."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from npukit.precision.recording.batch import Batch, Cell

Save = Callable[[str, Tensor], str]
_NOTHING = '"Max": null, "Min": null, "Mean": null, "Norm": null'


class Hollow:
    """A tensor of which only type and shape are told, such as one that is about to be overwritten."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Described:
    """A tensor as it is written down."""

    __slots__ = ("_head", "_tail", "cell")

    def __init__(self, tensor: Tensor, cell: Cell | None = None, file: str = "", maker: str = "") -> None:
        self.cell = cell
        self._head = _head(tensor.dtype, tensor.shape, tensor.requires_grad)
        self._tail = (f', "From": {quoted(maker)}' if maker else "") + (
            f', "data_name": {quoted(file)}' if file else ""
        )

    @property
    def text(self) -> str:
        """Its JSON."""
        return f"{self._head}{self.cell.text if self.cell else _NOTHING}{self._tail}}}"


@functools.lru_cache(4096)
def quoted(text: str) -> str:
    """Text in JSON."""
    return json.dumps(text)


@functools.lru_cache(4096)
def _head(dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> str:
    grad = "true" if requires_grad else "false"
    return f'{{"type": "torch.Tensor", "dtype": "{dtype}", "shape": {list(map(int, shape))}, "requires_grad": {grad}, '


class _Memory:
    """A storage, and what is known of it."""

    __slots__ = ("cells", "maker", "reference", "writes")

    def __init__(self, reference: StorageWeakRef) -> None:
        self.reference = reference  # while it is held, no other storage has this one's address
        self.cells: dict[tuple[Any, ...], Cell] = {}
        self.writes = 0  # by operators
        self.maker = ""  # the row that wrote to it last


class Tensors:
    """Describes values, and knows which tensors it has described already."""

    def __init__(self, save: Save | None, fresh: bool = False) -> None:
        self._save, self._fresh = save, fresh
        self._batch = Batch()
        self._memories: dict[int, _Memory] = {}

    def __len__(self) -> int:
        return len(self._batch)

    def describe(self, value: Any, name: str) -> Any:
        """A tensor, scalar, or nest of them; `name` is the file of a tensor that is saved, without its suffix."""
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if value is None:
            return None
        if isinstance(value, bool | int | float | str):
            return {"type": type(value).__name__, "value": value}
        if isinstance(value, list | tuple):
            if len(value) > 3 and isinstance(value[0], Tensor):
                self.measure(value)
            return [self.describe(each, f"{name}.{place}") for place, each in enumerate(value)]
        if isinstance(value, dict):
            return {str(key): self.describe(each, f"{name}.{key}") for key, each in value.items()}
        if isinstance(value, Hollow):
            return Described(value.tensor)
        known = isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format)
        return {"type": f"{type(value).__module__}.{type(value).__name__}", "value": str(value) if known else None}

    def measure(self, values: Iterable[Any]) -> None:
        """Start on the tensors among values with few launches: `describe` then finds them known."""
        if self._fresh:
            return
        found: dict[torch.dtype, dict[tuple[int, Any], Tensor]] = {}
        for value in values:
            tensor = local(value) if isinstance(value, Tensor) else None
            if tensor is not None and can_describe(tensor) and (memory := self._memory(tensor)):
                key = _key(tensor, memory)
                if key is not None and key not in memory.cells:
                    found.setdefault(tensor.dtype, {})[id(memory), key] = tensor
        for group in found.values():
            for (_, key), tensor, cell in zip(
                group, group.values(), self._batch.add_all([*group.values()]), strict=True
            ):
                memory = self._memory(tensor)
                assert memory is not None
                memory.cells[key] = cell

    def wrote(self, tensor: Tensor) -> None:
        """An operator has written to this tensor: what is known of its memory no longer holds."""
        if memory := self._memory(tensor):
            memory.writes += 1

    def made(self, tensor: Tensor, row: str) -> None:
        """A row has made this tensor, or has written to it."""
        if row and (memory := self._memory(tensor)):
            memory.maker = row

    def maker(self, tensor: Tensor) -> str:
        """The row that made a tensor, or its memory; empty where nobody knows."""
        memory = self._memory(tensor)
        return memory.maker if memory else ""

    def fetch(self) -> None:
        """Wait for the statistics of all tensors so far."""
        self._batch.take()
        self._memories = {
            key: memory
            for key, memory in self._memories.items()
            if not memory.reference.expired()  # type: ignore[no-untyped-call]
        }

    def forget(self) -> None:
        """Compute everything again, as after a step: optimizers may write to memory behind everybody's back."""
        for memory in self._memories.values():
            memory.cells.clear()

    def begin_step(self) -> None:
        """Rows of an earlier step are in another dump."""
        self._memories.clear()

    def _tensor(self, tensor: Tensor, name: str) -> Described:
        values = local(tensor)
        if not can_describe(values):
            return Described(tensor)
        file = self._save(name, values) if self._save else ""
        memory = self._memory(values)
        if memory is None:
            return Described(tensor, self._batch.add(values), file)
        key = None if self._fresh else _key(values, memory)
        cell = memory.cells.get(key) if key is not None else None
        if cell is None:
            cell = self._batch.add(values)
            if key is not None:
                memory.cells[key] = cell
        return Described(tensor, cell, file, memory.maker)

    def _memory(self, tensor: Tensor) -> _Memory | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors, and some subclasses
            return None
        memory = self._memories.get(storage._cdata)
        if memory is None:
            reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            memory = self._memories[storage._cdata] = _Memory(reference)
        return memory


def _key(tensor: Tensor, memory: _Memory) -> tuple[Any, ...] | None:
    """What two tensors of the same memory and the same values share; None: they are looked at each time."""
    if tensor.is_inference():
        return None
    # Statistics do not depend on the shape of what is contiguous: a view shares those of its base.
    layout = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
    return memory.writes, tensor._version, tensor.storage_offset(), tensor.dtype, layout, tensor.is_conj()


def local(tensor: Tensor) -> Tensor:
    """The part of a DTensor that this process holds; any other tensor itself."""
    return tensor if type(tensor) in (Tensor, torch.nn.Parameter) else getattr(tensor, "_local_tensor", tensor)


def storage_of(tensor: Tensor) -> int | None:
    """What identifies a tensor's memory while it is in use."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):  # sparse tensors, and some subclasses
        return None


def can_describe(tensor: Tensor) -> bool:
    """Whether there are plain values to look at."""
    plain = type(tensor) in (Tensor, torch.nn.Parameter) or type(tensor).__torch_dispatch__ is Tensor.__torch_dispatch__
    dense = tensor.layout is torch.strided and not tensor.is_quantized
    return plain and dense and not tensor.is_meta and tensor.numel() > 0
