"""Out of memory: what to change, and by how much."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.train.options import TrainOptions
from npukit.train.shards import local
from npukit.train.watch.device import GIB
from npukit.train.watch.summary import size

_UNITS = {"B": 1, "bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# Messages of torch's and torch_npu's allocators, of CUDA's and Ascend's drivers, and of the CPU's allocator.
_TEXTS = re.compile(
    r"out of memory|\bOOM\b|CUBLAS_STATUS_ALLOC_FAILED|error code is 207001|can't allocate memory|not enough memory",
    re.IGNORECASE,
)
_FILL = 0.9  # of the memory; the rest is for fragmentation and libraries
_ALMOST_ALL = 0.8  # if an allocation fails below this share, other processes have the memory
TRAINS_MOST = 0.5  # of the weights; an adapter trains far fewer
_CHECKPOINTED = 0.3  # the share of activations that activation checkpointing keeps, roughly


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device or the host is out of memory."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and bool(_TEXTS.search(str(error)))
    )


@dataclass(frozen=True)
class MemorySnapshot:
    """The memory of a device, in bytes, when it ran out."""

    total: int
    peak: int
    asked: int
    fixed: int  # weights, gradients, optimizer states

    @property
    def activations(self) -> int:
        """The least that a batch needs: the step failed before its end."""
        return max(self.peak + self.asked - self.fixed, 0)


def explain_out_of_memory(
    error: BaseException,
    options: TrainOptions,
    model: nn.Module | None = None,
    device: torch.device | None = None,
    world_size: int = 1,
    batch: Any = None,
    step: int | None = None,
) -> NpukitError | None:
    """The error as one sentence and a list of options to change, the gentlest change first.

    None for an error of another kind.
    """
    if not is_out_of_memory(error):
        return None
    memory = _measure(error, options, model, device)
    at = f" at step {step}" if step is not None else ""
    figures = ""
    if memory.total:
        figures = f" ({size(memory.peak / GIB)} of {size(memory.total / GIB)} used"
        figures += f", {size(memory.asked / GIB)} more requested)" if memory.asked else ")"
    has_own = device is not None and abilities(device).own_memory
    where = f"{device.type.upper()} {device.index or 0}" if device and has_own else "The host"
    changes = list(_changes(options, memory, world_size, _row_length(batch, options.batch_size)))
    if model is None or _trained_share(model) > TRAINS_MOST:
        changes.append(
            "training fewer parameters (language models: tuning.method: lora), which needs fewer optimizer states"
        )
    return NpukitError("\n  - ".join([f"{where} is out of memory{at}{figures}. Try these, in this order:", *changes]))


def _changes(options: TrainOptions, memory: MemorySnapshot, world_size: int, length: int | None) -> Iterator[str]:
    room = memory.total * _FILL - memory.fixed
    known = memory.total > 0 and memory.activations > 0
    if known and memory.peak + memory.asked < memory.total * _ALMOST_ALL:
        used = size(memory.peak / GIB)
        yield f"stop other processes on this device (see npu-smi or nvidia-smi): this run used only {used}"
    fits = not known or room > 0  # whether fewer activations can help
    if fits and options.batch_size > 1:
        smaller = _batch_size(options.batch_size, room / memory.activations if known else 0.5)
        factor = options.batch_size // smaller
        saved = f", about {size((memory.activations * (1 - 1 / factor)) / GIB)} less" if known else ""
        yield (
            f"batch_size: {smaller} and accumulation: {options.accumulation * factor} (now {options.batch_size} and "
            f"{options.accumulation}: the same {options.batch_size * options.accumulation} rows per step{saved})"
        )
    if fits and not options.activation_checkpointing:
        saved = f": about {size((memory.activations * (1 - _CHECKPOINTED)) / GIB)} less" if known else ""
        yield f"activation_checkpointing: true{saved}, at the cost of about a third more time"
    if fits and length:
        yield f"shorter rows: they have length {length} now (language models: data.cutoff, data.pack_length)"
    if options.precision == "fp32":
        yield "precision: auto, which halves activations if the device supports bf16 or fp16"
    yield from _sharding(options, memory, world_size)


def _sharding(options: TrainOptions, memory: MemorySnapshot, world_size: int) -> Iterator[str]:
    fixed = f"{size(memory.fixed / GIB)} of weights, gradients and optimizer states" if memory.fixed else "the states"
    sharded = options.parallel not in ("ddp", "zero1", "zero2")
    if world_size > 1 and not sharded:
        share = f", {size((memory.fixed / world_size) / GIB)} on each" if memory.fixed else ""
        yield f"parallel: fsdp2 (or zero3), which splits {fixed} over {world_size} devices{share}"
    if world_size == 1:
        yield f"more devices with parallel: fsdp2 (or zero3), which splits {fixed}"
    elif not options.offload:
        yield "offload: true with fsdp2 or zero, which keeps optimizer states in host memory but is slower"


def _batch_size(now: int, share: float) -> int:
    """The largest divisor, at most half, that fits into this share of the memory, so that a step keeps its rows."""
    divisors = [rows for rows in range(1, now) if now % rows == 0]
    return max((rows for rows in divisors if rows <= now * min(share, 0.5)), default=1)


def _measure(
    error: BaseException, options: TrainOptions, model: nn.Module | None, device: torch.device | None
) -> MemorySnapshot:
    text = str(error)
    total, peak = _size_after(text, r"total capacity(?: of)?"), 0
    if device is not None and abilities(device).own_memory:
        module = torch.get_device_module(device)
        total = int(module.get_device_properties(device).total_memory)
        peak = int(module.max_memory_allocated(device))
    return MemorySnapshot(
        total, peak, _size_after(text, r"[Tt]ried to allocate"), _fixed_bytes(options, model) if model else 0
    )


def _fixed_bytes(options: TrainOptions, model: nn.Module) -> int:
    """What stays on this device from step to step: weights, gradients and the optimizer's states."""
    moments = {"adamw": 2, "adam": 2, "sgd": 1 if options.momentum else 0}[options.optimizer]
    total = 0
    for weight in model.parameters():
        copies = 2 + (0 if options.offload else moments) if weight.requires_grad else 1
        total += local(weight).nbytes * copies
    return total


def _trained_share(model: nn.Module) -> float:
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    return trained / max(1, sum(weight.numel() for weight in model.parameters()))


def _size_after(text: str, words: str) -> int:
    match = re.search(rf"{words}\s*:?\s*([\d.]+)\s*(TiB|GiB|MiB|KiB|bytes|B)\b", text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


def _row_length(batch: Any, rows: int) -> int | None:
    """The length of the rows of tokens; None if the batch has none."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    # Packed rows are one long row, so the last dimension alone does not say.
    return ids.numel() // rows if isinstance(ids, torch.Tensor) and ids.dim() > 1 else None
