"""Observes what a run computes: tensors on which backward() is called, outputs of modules, and optimizer steps.

Every process writes its own file, named after it.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import current_process
from pathlib import Path
from typing import Any, TextIO

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

MAX_RECORDED = {"outputs": 100, "gradients": 10, "weights": 10}  # rounding errors have grown in later ones
_MAX_GROUPS = 8
# Settings that do not change an optimizer's result
_HOW = ("fused", "foreach", "capturable", "differentiable", "initial_lr")


class ProcessWatch:
    """Observes this process for the rest of its life.

    >>> ProcessWatch(Path("watched")).begin()
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = os.getpid()
        self._file: TextIO | None = None
        self._counts: Counter[str] = Counter()
        self._rounding = torch.finfo(torch.float32).eps
        self._in_module = self._in_backward = False

    def begin(self) -> None:
        self._wrap_backward()
        self._wrap_modules()
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def _note(self, kind: str, name: str, value: float, direction: float | None = None, text: str = "") -> None:
        if os.getpid() != self._process:  # forked: a data loading worker
            return
        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            self._file = (self._folder / current_process().name).open("a", buffering=1)
        print(json.dumps([kind, name, value, direction, self._rounding, text]), file=self._file)

    def _note_tensors(self, kind: str, tensors: Iterable[torch.Tensor]) -> None:
        if self._counts[kind] < MAX_RECORDED[kind] and (summed := summary(tensors)):
            self._counts[kind] += 1
            self._note(kind, "", *summed)

    def _wrap_backward(self) -> None:
        tensor_class: Any = torch.Tensor
        backward = tensor_class.backward

        @functools.wraps(backward)
        def noted(tensor: Any, *args: Any, **kwargs: Any) -> None:
            if self._in_backward:  # when CUDA is mapped to the CPU, backward calls itself
                backward(tensor, *args, **kwargs)
                return
            if tensor.numel() == 1:
                self._note("backward", "", getattr(tensor, "_npukit_unscaled", tensor).item())
            self._in_backward = True
            try:
                backward(tensor, *args, **kwargs)
            finally:
                self._in_backward = False

        tensor_class.backward = noted
        scaler_class: Any = torch.amp.GradScaler
        for subclass in with_subclasses(scaler_class):
            _remember_unscaled(subclass)
        # Torch_npu has its own and may be imported later
        scaler_class.__init_subclass__ = classmethod(_remember_unscaled)

    def _wrap_modules(self) -> None:
        call = torch.nn.Module.__call__

        @functools.wraps(call)
        def noted(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or torch._C._get_tracing_state() or self._in_module:
                return call(module, *args, **kwargs)
            self._in_module = True
            try:
                result = call(module, *args, **kwargs)
            finally:
                self._in_module = False
            tensors = list(_tensors(result))
            self._rounding = max(
                self._rounding, _autocast_rounding(), *(torch.finfo(tensor.dtype).eps for tensor in tensors)
            )
            self._note_tensors("outputs", tensors)
            return result

        module_class: Any = torch.nn.Module
        module_class.__call__ = noted

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self._note_tensors(
            "gradients", (parameter.grad for parameter in _parameters(optimizer) if parameter.grad is not None)
        )
        for name, value in _settings(optimizer):
            self._note("settings", name, value)
        known = (base.__name__ for base in type(optimizer).__mro__ if base.__module__.startswith("torch.optim."))
        kind = next(known, "Optimizer")
        if kind != "Optimizer":  # torch_npu's fused optimizers are other classes
            self._note("settings", "optimizer", float(sum(kind.encode())), text=kind)

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._note_tensors("weights", _parameters(optimizer))


def _parameters(optimizer: Any) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _settings(optimizer: Any) -> Iterator[tuple[str, float]]:
    for number, group in enumerate(optimizer.param_groups[:_MAX_GROUPS]):
        for name, value in group.items():
            if name == "params" or name in _HOW:
                continue
            values = (
                {f"{name}[{at}]": item for at, item in enumerate(value)} if isinstance(value, tuple) else {name: value}
            )
            for key, setting in values.items():
                setting = setting.item() if isinstance(setting, torch.Tensor) and setting.numel() == 1 else setting
                if isinstance(setting, int | float):
                    yield f"{key} of group {number}", float(setting)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The floating-point tensors in a module's output."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def with_subclasses(kind: Any) -> Iterator[Any]:
    """A class and all its subclasses.

    >>> [each.__name__ for each in with_subclasses(torch.amp.GradScaler)]
    ['GradScaler', 'GradScaler']
    """
    yield kind
    for subclass in kind.__subclasses__():
        yield from with_subclasses(subclass)


def _remember_unscaled(scaler_class: Any) -> None:
    """Make a scaler's `scale` attach the unscaled tensor, which is the loss, to its result."""
    scale = vars(scaler_class).get("scale")
    if scale is None:
        return

    @functools.wraps(scale)
    def scaled(scaler: Any, outputs: Any) -> Any:
        result: Any = scale(scaler, outputs)
        if isinstance(result, torch.Tensor):
            result._npukit_unscaled = outputs.detach()  # type: ignore[attr-defined]
        return result

    scaler_class.scale = scaled


def _autocast_rounding() -> float:
    """The relative spacing of autocast's present dtype; 0 if it is off."""
    kinds = ("cpu", "cuda", torch._C._get_privateuse1_backend_name())
    types = [torch.get_autocast_dtype(kind) for kind in kinds if torch.is_autocast_enabled(kind)]
    return max((torch.finfo(dtype).eps for dtype in types), default=0.0)


def summary(tensors: Iterable[torch.Tensor]) -> tuple[float, float] | None:
    """The length of all tensors as one vector, and its projection on a fixed direction; None without tensors."""
    known = list(filter(None, (figures(_plain(tensor)) for tensor in tensors)))
    return (math.hypot(*(norm for norm, _ in known)), math.fsum(along for _, along in known)) if known else None


def _plain(tensor: Any) -> torch.Tensor:
    tensor = tensor.detach()
    local: torch.Tensor = (
        tensor.to_local() if hasattr(tensor, "to_local") else tensor
    )  # the local part of a distributed tensor
    return local.to_dense() if local.layout is not torch.strided else local


def figures(tensor: torch.Tensor) -> list[float] | None:
    """A tensor's length as a vector and its projection on a fixed direction, which other values rarely share."""
    if tensor.is_complex() or tensor.numel() == 0 or tensor.is_meta:
        return None
    values = tensor.detach().cpu().double().flatten()
    direction = torch.arange(values.numel(), dtype=torch.float64).add_(1).cos_()
    return [values.norm().item(), torch.dot(values, direction).item()]
