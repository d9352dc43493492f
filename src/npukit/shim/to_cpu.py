"""Runs CUDA code on the CPU: wherever torch gets "cuda", it uses the CPU."""

from __future__ import annotations

import torch
import torch.distributed.fsdp  # torch does not import it by itself

from npukit.shim.cpu import OnCpu
from npukit.shim.table import change


def apply(devices: int) -> None:
    """Patch this process for the rest of its life; it sees `devices` CUDA devices."""
    change("cpu")
    torch.cuda.device_count = lambda: devices
    OnCpu().__enter__()  # type: ignore[no-untyped-call]
