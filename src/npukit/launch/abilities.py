"""What torch can do on each kind of device, and what pays off there: the one place that tells kinds apart.

A row says what is so, with the reason; code asks `abilities(device)` and never for the name of a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Abilities:
    """The answers for one kind of device."""

    own_memory: bool = True  # beside the host's: pinned copies, streams, events, random numbers and figures of its own
    double: bool = True  # computes in float64
    torch_npu: bool = False  # has torch_npu's fused operators, optimizers and profiler
    flash_attention: bool = False  # torch's own for packed rows, by cu_seqlens on the device
    fused_optimizers: bool = False  # torch's own, with fused=True
    compiles: bool = False  # torch.compile makes layers faster
    records_graphs: bool = False  # a step can be recorded once and played again
    block_size: int = 16  # tokens in a block of a paged cache, as its attention likes them best


KINDS = {
    "cpu": Abilities(own_memory=False),
    "cuda": Abilities(flash_attention=True, fused_optimizers=True, compiles=True, records_graphs=True, block_size=64),
    "npu": Abilities(double=False, torch_npu=True, records_graphs=True, block_size=128),
}
ADA, HOPPER = (8, 9), (9, 0)  # generations of GPUs, by their compute capability
OTHER = Abilities(double=False)  # nothing is assumed


def abilities(device: torch.device) -> Abilities:
    """What can be done on a device.

    >>> abilities(torch.device("npu:0")).double
    False
    """
    return KINDS.get(device.type, OTHER)


def has_grouped_product(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch's grouped product is one kernel there, which never asks the host for anything."""
    import torch

    return dtype is torch.bfloat16 and _is_gpu_since(device, HOPPER)


def eight_bits(device: torch.device) -> torch.dtype | None:
    """The type of 8 bits that its matrix units multiply; None for GPUs that have none that torch uses."""
    import torch

    if device.type != "cuda":
        return torch.int8
    return torch.float8_e4m3fn if _is_gpu_since(device, ADA) else None


def _is_gpu_since(device: torch.device, generation: tuple[int, int]) -> bool:
    import torch

    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= generation


def has_bf16(device: torch.device) -> bool:
    """Whether it has instructions for bf16, which some cards and CPUs of each kind have: so it is asked itself."""
    import torch

    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    options = {"including_emulation": False} if device.type == "cuda" else {}
    return bool(torch.get_device_module(device).is_bf16_supported(**options))
