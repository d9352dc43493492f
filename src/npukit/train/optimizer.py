"""The optimizer: what decays, and the fastest implementation that the device has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.train.options import TrainOptions
from npukit.train.other_optimizers import is_other

Groups = list[dict[str, Any]]


def parameter_groups(model: nn.Module, weight_decay: float) -> Groups:
    """The trained parameters, those without weight decay apart: biases and norms, which have one dimension at most."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise NpukitError("The model has no trainable parameters: set requires_grad on some of them.")
    decayed = [parameter for parameter in trained if parameter.dim() >= 2]
    others = [parameter for parameter in trained if parameter.dim() < 2]
    groups: Groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(groups: Groups, options: TrainOptions, device: torch.device, sharded: bool) -> torch.optim.Optimizer:
    """Fused on a GPU; on an NPU torch_npu's own, which needs whole parameters, fp32 or fp16, and all in every step."""
    if is_other(options.optimizer):
        raise NpukitError(f"training.optimizer {options.optimizer} needs training.parallel=ddp.")
    groups = [{**group, "params": list(group["params"])} for group in groups]  # an iterator would be empty after a look
    known: dict[str, Any] = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    if options.optimizer == "sgd":
        known["momentum"] = options.momentum
    else:
        known.update(betas=options.betas, eps=options.epsilon)
    optimizer: torch.optim.Optimizer
    formats = {parameter.dtype for group in groups for parameter in group["params"]}
    whole = not sharded and not options.find_unused_parameters
    if abilities(device).torch_npu and whole and formats <= {torch.float32, torch.float16}:
        import torch_npu

        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # by torch_npu itself
        on_npu = {
            "adamw": torch_npu.optim.NpuFusedAdamW,
            "adam": torch_npu.optim.NpuFusedAdam,
            "sgd": torch_npu.optim.NpuFusedSGD,
        }
        optimizer = on_npu[options.optimizer](groups, **known)
        optimizer.register_step_pre_hook(_all_have_gradients())
        return optimizer
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[options.optimizer](groups, fused=abilities(device).fused_optimizers or None, **known)
    return optimizer


def _all_have_gradients() -> Callable[..., None]:
    """torch_npu's optimizers would never update a parameter that has no gradient yet in the first step."""
    is_first = True

    def fill(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)

    return fill
