"""In which number format the model computes."""

from __future__ import annotations

import torch

from npukit.errors import NpukitError
from npukit.train.options import TrainOptions

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}


def compute_dtype(options: TrainOptions, device: torch.device) -> torch.dtype:
    """The format of matrix products: bf16 where the device really has it, else fp16; fp32 on a CPU."""
    wanted = options.precision
    if wanted == "auto":
        if device.type == "cpu":
            return torch.float32
        return torch.bfloat16 if _has_bf16(device) else torch.float16
    if wanted == "bf16" and not _has_bf16(device):
        raise NpukitError("This device cannot compute in bf16: use precision: fp16, or auto, which finds out.")
    return LOW.get(wanted, torch.float32)


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cpu":
        return True
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.get_device_module(device).is_bf16_supported())


def autocast(device: torch.device, dtype: torch.dtype) -> torch.autocast:
    """The context that a forward pass runs in."""
    return torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32)


def make_scaler(options: TrainOptions, device: torch.device, dtype: torch.dtype) -> torch.amp.GradScaler | None:
    """fp16 gradients are scaled so that small ones do not vanish."""
    if dtype != torch.float16:
        return None
    return torch.amp.GradScaler(device.type, init_scale=options.loss_scale)
