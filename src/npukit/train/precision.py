"""The number format that the model computes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities, has_bf16
from npukit.train.options import TrainOptions

FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
REASONS = {
    "asked": "as configured",
    "slow": "as configured; this CPU has no instructions for it: precision: fp32 would be much faster",
    "cpu": "the default on CPUs",
    "has bf16": "which this device supports",
    "no bf16": "because this device has no bf16",
}


@dataclass(frozen=True)
class Precision:
    """The number format of matrix products, and why it was chosen."""

    name: Literal["bf16", "fp16", "fp32"]
    reason: Literal["asked", "slow", "cpu", "has bf16", "no bf16"]

    @property
    def dtype(self) -> torch.dtype:
        return FORMATS[self.name]

    def __str__(self) -> str:
        return f"{self.name}, {REASONS[self.reason]}"


def choose_precision(options: TrainOptions, device: torch.device) -> Precision:
    """The option's, or bf16 if the device supports it in hardware, otherwise fp16; fp32 on a CPU.

    >>> str(choose_precision(TrainOptions(), torch.device("cpu")))
    'fp32, the default on CPUs'
    """
    wanted = options.precision
    if wanted == "auto":
        if not abilities(device).own_memory:
            return Precision("fp32", "cpu")
        return Precision("bf16", "has bf16") if has_bf16(device) else Precision("fp16", "no bf16")
    if wanted != "fp32" and not abilities(device).own_memory and not has_bf16(device):
        return Precision(wanted, "slow")  # such a CPU is slow with fp16 too
    if wanted == "bf16" and not has_bf16(device):
        raise NpukitError(
            "This device cannot compute in bf16: use precision: fp16, or auto, which chooses a supported type."
        )
    return Precision(wanted, "asked")


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The context of a forward pass."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def make_scaler(options: TrainOptions, device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler | None:
    """The gradient scaler, which keeps small fp16 gradients from vanishing."""
    if dtype != torch.float16:
        return None
    return torch.amp.GradScaler(device.type, init_scale=options.loss_scale)
