"""The optimizer: its parameter groups, and the fastest implementation for the device."""

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
    """The trainable parameters in two groups; biases and norms, with at most one dimension, have no weight decay."""
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
    """A fused optimizer. torch_npu's needs unsharded fp32 or fp16 parameters that all have gradients in every step."""
    if is_other(options.optimizer):
        raise NpukitError(f"training.optimizer {options.optimizer} needs training.parallel=ddp.")
    groups = [{**group, "params": list(group["params"])} for group in groups]  # an iterator can be read only once
    settings: dict[str, Any] = {"lr": options.learning_rate, "weight_decay": options.weight_decay}
    if options.optimizer == "sgd":
        settings["momentum"] = options.momentum
    else:
        settings.update(betas=options.betas, eps=options.epsilon)
    optimizer: torch.optim.Optimizer
    dtypes = {parameter.dtype for group in groups for parameter in group["params"]}
    all_have_gradients = not sharded and not options.find_unused_parameters
    if abilities(device).torch_npu and all_have_gradients and dtypes <= {torch.float32, torch.float16}:
        import torch_npu

        warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # by torch_npu itself
        on_npu = {
            "adamw": torch_npu.optim.NpuFusedAdamW,
            "adam": torch_npu.optim.NpuFusedAdam,
            "sgd": torch_npu.optim.NpuFusedSGD,
        }
        optimizer = on_npu[options.optimizer](groups, **settings)
        optimizer.register_step_pre_hook(_whole_gradients())
        return optimizer
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    optimizer = kinds[options.optimizer](groups, fused=abilities(device).fused_optimizers or None, **settings)
    return optimizer


def _whole_gradients() -> Callable[..., None]:
    """A hook for the first step. torch_npu's optimizers join the gradients that they find in it: they never update a
    parameter that has none, and fail where one is a part of a larger tensor, as that of a joined parameter is.
    """
    is_first = True

    def fill(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    elif parameter.grad.untyped_storage().nbytes() != parameter.grad.nbytes:
                        parameter.grad = parameter.grad.clone()

    return fill
