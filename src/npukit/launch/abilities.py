"""What torch supports on each kind of device, and what is fast there. No other module compares device types.

Every row is one kind of device. Code asks `abilities(device)` instead of comparing device.type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Abilities:
    """The abilities of one kind of device."""

    # Separate from the host's: pinned copies, streams, events, own random numbers and statistics
    own_memory: bool = True
    double: bool = True  # computes in float64
    torch_npu: bool = False  # has torch_npu's fused operators, optimizers and profiler
    flash_attention: bool = False  # torch's own, for packed rows with cu_seqlens on the device
    fused_optimizers: bool = False  # torch's own, with fused=True
    compiles: bool = False  # torch.compile makes layers faster
    records_graphs: bool = False  # a step can be recorded as a graph and replayed
    block_size: int = 16  # tokens in a block of the paged cache; the best for its attention kernel


KINDS = {
    "cpu": Abilities(own_memory=False),
    "cuda": Abilities(flash_attention=True, fused_optimizers=True, compiles=True, records_graphs=True, block_size=64),
    "npu": Abilities(double=False, torch_npu=True, records_graphs=True, block_size=128),
}
ADA, HOPPER = (8, 9), (9, 0)  # generations of GPUs, by their compute capability
OTHER = Abilities(double=False)  # an unknown device


def abilities(device: torch.device) -> Abilities:
    """The abilities of a device.

    >>> abilities(torch.device("npu:0")).double
    False
    """
    return KINDS.get(device.type, OTHER)


def has_grouped_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped matrix product is one kernel there, without a synchronisation with the host."""
    import torch

    return dtype is torch.bfloat16 and _is_gpu_since(device, HOPPER)


def eight_bits(device: torch.device) -> torch.dtype | None:
    """The 8-bit dtype of its matrix units; None if torch supports none there."""
    import torch

    if device.type != "cuda":
        return torch.int8
    return torch.float8_e4m3fn if _is_gpu_since(device, ADA) else None


def _is_gpu_since(device: torch.device, generation: tuple[int, int]) -> bool:
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= generation


def has_bf16(device: torch.device) -> bool:
    """Whether it has bf16 instructions. This differs within a kind of device, so the device itself is asked."""
    import torch

    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    options = {"including_emulation": False} if device.type == "cuda" else {}
    return bool(torch.get_device_module(device).is_bf16_supported(**options))
