"""Let code that insists on CUDA run on the CPU: wherever torch is told "cuda", the CPU is meant."""

from __future__ import annotations

import torch
import torch.distributed.fsdp  # torch does not by itself

from npukit.shim.cpu import OnCpu
from npukit.shim.table import change


def apply(devices: int) -> None:
    """Change this process for the rest of its life; it sees so many CUDA devices."""
    change("cpu")
    torch.cuda.device_count = lambda: devices
    OnCpu().__enter__()  # type: ignore[no-untyped-call]
