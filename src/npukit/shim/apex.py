"""The most used part of NVIDIA's apex, implemented with torch, for environments without apex.

apex.amp scales the loss and runs the model in half precision (O1, O2 and O3 alike: autocast), apex.parallel,
apex.optimizers and apex.normalization are torch's own equivalents.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from npukit.shim.replaced import REPLACED

FIRST_SCALE, LARGEST_SCALE, STEPS_TO_GROW = 2.0**16, 2.0**24, 2000


class _LossScale:
    def __init__(self, scale: float | str | None) -> None:
        self.moves = scale in (None, "dynamic")
        self.value = FIRST_SCALE if self.moves else float(scale or 1)
        self.steps_since_overflow = 0

    def update(self, overflow: bool) -> None:
        if not self.moves:
            return
        if overflow:
            self.value, self.steps_since_overflow = self.value / 2, 0
        elif (steps := self.steps_since_overflow + 1) == STEPS_TO_GROW:
            self.value, self.steps_since_overflow = min(self.value * 2, LARGEST_SCALE), 0
        else:
            self.steps_since_overflow = steps


_scale = _LossScale(1.0)


def initialize(
    models: Any, optimizers: Any = None, opt_level: str = "O1", loss_scale: Any = None, enabled: bool = True, **_: Any
) -> Any:
    """apex.amp.initialize: models compute in half precision, losses are scaled."""
    global _scale
    REPLACED["apex.amp, by torch.amp"] += 1
    if enabled and opt_level != "O0":
        _scale = _LossScale(loss_scale)
        for model in models if isinstance(models, (list, tuple)) else [models]:
            model.forward = torch.autocast("npu", dtype=torch.float16)(model.forward)
    return models if optimizers is None else (models, optimizers)


@contextmanager
def scale_loss(loss: Any, optimizers: Any, delay_unscale: bool = False, **_: Any) -> Iterator[Any]:
    """apex.amp.scale_loss: gradients come out unscaled; a step with an overflow is skipped."""
    optimizers = optimizers if isinstance(optimizers, (list, tuple)) else [optimizers]
    parameters = [parameter for optimizer in optimizers for parameter in master_params(optimizer)]
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    yield loss.float() * _scale.value
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for gradient in gradients:
        gradient.div_(_scale.value)
    overflow = not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    for parameter, earlier in zip(parameters, before, strict=True):
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else parameter.grad + earlier
    _scale.update(overflow)
    if overflow:
        for optimizer in optimizers:
            _leave_out_next_step(optimizer)


def _leave_out_next_step(optimizer: Any) -> None:
    def step(*_: Any, **__: Any) -> None:
        optimizer.__dict__.pop("step", None)
        optimizer.__dict__.update(shadowed)

    shadowed = {"step": optimizer.__dict__["step"]} if "step" in optimizer.__dict__ else {}
    optimizer.step = step


def master_params(optimizer: Any) -> Iterator[Any]:
    """apex.amp.master_params: the parameters that the optimizer updates."""
    for group in optimizer.param_groups:
        yield from group["params"]


def state_dict() -> dict[str, Any]:
    return {"loss_scale": _scale.value, "steps_since_overflow": _scale.steps_since_overflow}


def load_state_dict(state: dict[str, Any]) -> None:
    _scale.value = state["loss_scale"]
    _scale.steps_since_overflow = state.get("steps_since_overflow", 0)


class _Parallel(DistributedDataParallel):
    def __init__(self, module: torch.nn.Module, **_: Any) -> None:
        super().__init__(module)


class _FusedAdam(torch.optim.AdamW):
    def __init__(self, params: Any, lr: float = 1e-3, weight_decay: float = 0.0, **options: Any) -> None:
        known = {name: options[name] for name in ("betas", "eps", "amsgrad") if name in options}
        super().__init__(params, lr, weight_decay=weight_decay, **known)


def modules() -> dict[str, types.ModuleType]:
    """apex and its submodules, by the names under which they are imported."""
    contents: dict[str, dict[str, Any]] = {
        "apex.amp": {
            function.__name__: function
            for function in (initialize, scale_loss, master_params, state_dict, load_state_dict)
        },
        "apex.parallel": {
            "DistributedDataParallel": _Parallel,
            "SyncBatchNorm": torch.nn.SyncBatchNorm,
            "convert_syncbn_model": torch.nn.SyncBatchNorm.convert_sync_batchnorm,
        },
        "apex.optimizers": {"FusedAdam": _FusedAdam, "FusedSGD": torch.optim.SGD},
        "apex.normalization": {"FusedLayerNorm": torch.nn.LayerNorm, "FusedRMSNorm": torch.nn.RMSNorm},
    }
    apex = types.ModuleType("apex")
    modules = {"apex": apex}
    for name, members in contents.items():
        modules[name] = types.ModuleType(name)
        modules[name].__dict__.update(members)
        setattr(apex, name.rpartition(".")[2], modules[name])
    return modules
