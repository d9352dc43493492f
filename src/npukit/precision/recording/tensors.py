"""Describe arguments and results as msprobe's dumps do; the statistics of a tensor are computed once while it lasts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

from npukit.precision.recording.statistics import Batch, Statistics

Save = Callable[[str, Tensor], str]


class Cell:
    """The statistics of a tensor, once they have been fetched."""

    statistics: Statistics | None = None


class Described:
    """A tensor as it is written down."""

    def __init__(self, tensor: Tensor, cell: Cell | None, file: str = "", maker: str = "") -> None:
        self.cell, self._file, self._maker = cell, file, maker
        self._plain: dict[str, Any] = {
            "type": "torch.Tensor",
            "dtype": str(tensor.dtype),
            "shape": list(tensor.shape),
            "requires_grad": tensor.requires_grad,
        }

    def plain(self) -> dict[str, Any]:
        """What a dump holds of it: msprobe's keys, and after them our own."""
        found = self.cell.statistics if self.cell else None
        plain = {**self._plain, "Max": None, "Min": None, "Mean": None, "Norm": None}
        if found:
            is_bool = plain["dtype"] == "torch.bool"
            largest, smallest = (bool(v) if is_bool else v for v in (found.maximum, found.minimum))
            plain |= {"Max": largest, "Min": smallest, "Mean": found.mean, "Norm": found.norm}
            plain |= {"Nan": found.nan, "Inf": found.inf, "Hash": found.hash, "Sketch": found.sketch}
        if self._maker:
            plain["From"] = self._maker
        return {**plain, "data_name": self._file} if self._file else plain


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Compute without being recorded, differentiated or cast to half precision."""
    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        yield


class Tensors:
    """Describes values, and knows which tensors it has described already."""

    def __init__(self, save: Save | None, fresh: bool = False) -> None:
        self._save, self._fresh = save, fresh
        self._batch = Batch()
        self._cells: list[Cell] = []  # of the batch
        self._known: dict[tuple[Any, ...], tuple[StorageWeakRef, Cell]] = {}
        self._writes: dict[int, int] = {}  # by storage: how often an operator has written to it
        self._makers: dict[int, tuple[StorageWeakRef, str]] = {}  # by storage: the row that wrote to it last

    def __len__(self) -> int:
        return len(self._batch)

    def describe(self, value: Any, name: str) -> Any:
        """A tensor, scalar, or nest of them; `name` is the file of a tensor that is saved, without its suffix."""
        if isinstance(value, Tensor):
            return self._tensor(value, name)
        if isinstance(value, list | tuple):
            return [self.describe(each, f"{name}.{place}") for place, each in enumerate(value)]
        if isinstance(value, dict):
            return {str(key): self.describe(each, f"{name}.{key}") for key, each in value.items()}
        if value is None:
            return None
        if isinstance(value, bool | int | float | str):
            return {"type": type(value).__name__, "value": value}
        known = isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format)
        return {"type": f"{type(value).__module__}.{type(value).__name__}", "value": str(value) if known else None}

    def wrote(self, tensor: Tensor) -> None:
        """An operator has written to this tensor: what is known of its memory no longer holds."""
        if (key := storage_of(tensor)) is not None:
            self._writes[key] = self._writes.get(key, 0) + 1

    def made(self, tensor: Tensor, row: str) -> None:
        """A row has made this tensor, or has written to it."""
        if row and (key := storage_of(tensor)) is not None:
            self._makers[key] = StorageWeakRef(tensor.untyped_storage()), row  # type: ignore[no-untyped-call]

    def maker(self, tensor: Tensor) -> str:
        """The row that made a tensor, or its memory; empty where nobody knows."""
        found = self._makers.get(storage_of(tensor) or 0)
        return "" if found is None or found[0].expired() else found[1]  # type: ignore[no-untyped-call]

    def fetch(self) -> None:
        """Wait for the statistics of all tensors so far."""
        with undisturbed():
            for cell, statistics in zip(self._cells, self._batch.take(), strict=True):
                cell.statistics = statistics
        self._cells = []

    def forget(self) -> None:
        """Compute everything again, as after a step: optimizers may write to memory behind everybody's back."""
        self._known.clear()
        self._writes.clear()

    def begin_step(self) -> None:
        """Rows of an earlier step are in another dump."""
        self._makers.clear()

    def _tensor(self, tensor: Tensor, name: str) -> Described:
        values = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if not can_describe(values):
            return Described(tensor, None)
        file = self._save(name, values) if self._save else ""
        return Described(tensor, self._cell(values), file, self.maker(values))

    def _cell(self, tensor: Tensor) -> Cell:
        key = self._key(tensor)
        found = self._known.get(key) if key is not None else None
        if found and not found[0].expired():  # type: ignore[no-untyped-call]
            return found[1]
        cell = Cell()
        with undisturbed():
            self._batch.add(tensor)
        self._cells.append(cell)
        if key is not None:
            self._known[key] = StorageWeakRef(tensor.untyped_storage()), cell  # type: ignore[no-untyped-call]
        return cell

    def _key(self, tensor: Tensor) -> tuple[Any, ...] | None:
        storage = storage_of(tensor)
        if storage is None or self._fresh or tensor.is_inference():
            return None
        # Statistics do not depend on the shape of what is contiguous: a view shares those of its base.
        layout = tensor.numel() if tensor.is_contiguous() else (tensor.shape, tensor.stride())
        times = self._writes.get(storage, 0)
        return storage, times, tensor._version, tensor.storage_offset(), tensor.dtype, layout, tensor.is_conj()


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
