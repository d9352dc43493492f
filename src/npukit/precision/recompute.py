"""Find where NaN or Inf began, by computing the batch once more while watching every module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npukit.precision import capture
from npukit.precision.nest import named_tensors, row_count
from npukit.precision.nonfinite import origin_sentence
from npukit.precision.recording.tensors import local
from npukit.report.report import few
from npukit.report.unfinished import temporary_folder


def first_nonfinite(model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batch: Any) -> str | None:
    """What first became NaN or Inf, as a sentence: the batch, the weights, a module's forward, the loss, or the
    backward.

    Returns None if everything is finite this time. `loss` is computed as in training, so it must apply autocast itself.
    Gradients are discarded afterwards.

    >>> first_nonfinite(model, loss, batch)
    "layers.1.act (Square) returned 4 Inf …; its input was finite … The first operator with Inf is mul"
    """
    with temporary_folder("nonfinite") as folder:
        cause = _first_nonfinite(model, loss, batch, folder)
        operator = origin_sentence(folder) if cause and any(folder.iterdir()) else ""
    return f"{cause} {operator}".rstrip() if cause else None


def _first_nonfinite(
    model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], batch: Any, folder: Path
) -> str | None:
    model.zero_grad(set_to_none=True)
    watcher = _Watcher(model, row_count(batch))
    # Always: ranks that share weights must compute together.
    with capture(folder, level="ops"), watcher:
        value = loss(model, batch)
        if not watcher.forward and not _is_bad(value):
            value.backward()  # type: ignore[no-untyped-call]
    bad_inputs = [(name, given) for name, given in named_tensors(batch) if _is_bad(given)]
    if bad_inputs:
        name, given = bad_inputs[0]
        return f"The batch itself contains {_count(given)} in {name or 'its tensor'}{_rows(given, row_count(batch))}."
    bad_weights = [name for name, weight in model.named_parameters() if _is_bad(weight)]
    if bad_weights:
        return f"The weights already contain NaN or Inf from an earlier step: {few(bad_weights)}."
    if watcher.forward:
        return watcher.forward
    if _is_bad(value):
        return f"The loss itself is {float(value.detach())}: every module returned finite values."
    bad_gradients = [
        name for name, weight in model.named_parameters() if weight.grad is not None and _is_bad(weight.grad)
    ]
    model.zero_grad(set_to_none=True)
    if watcher.backward:
        return watcher.backward + (f" So are the gradients of {few(bad_gradients)}." if bad_gradients else "")
    if bad_gradients:
        return (
            f"The forward pass is finite; the backward pass gives NaN or Inf in the gradient of {few(bad_gradients)}."
        )
    return None


class _Watcher:
    """Hooks on every module that keep the first sentence of the forward and the first of the backward."""

    def __init__(self, model: nn.Module, rows: int | None) -> None:
        self.forward = self.backward = ""
        self._rows = rows
        self._handles: list[Any] = []
        self._modules = {name or "the model": module for name, module in model.named_modules()}

    def __enter__(self) -> _Watcher:
        for name, module in self._modules.items():
            self._handles.append(module.register_forward_hook(self._forward_hook(name)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _forward_hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            for _, value in named_tensors(output):
                if not self.forward and _is_bad(value):
                    self.forward = self._forward_sentence(name, module, inputs, value)
                elif value.requires_grad:
                    self._handles.append(value.register_hook(self._gradient_hook(name, module)))  # type: ignore[no-untyped-call]

        return hook

    def _forward_sentence(self, name: str, module: nn.Module, inputs: Any, output: Tensor) -> str:
        given = [value for _, value in named_tensors(inputs) if value.is_floating_point() and value.numel()]
        gave = f"{name} ({type(module).__name__}) returned {_count(output)}{_rows(output, self._rows)}"
        if not given:
            return f"{gave}."
        if any(_is_bad(value) for value in given):
            return f"An operation between modules, right before {name} ({type(module).__name__}), returned NaN or Inf."
        largest = max(float(value.detach().abs().max()) for value in given)
        return f"{gave}; its input was finite, at most {largest:.2g} in {_dtype(given[0])}."

    def _gradient_hook(self, name: str, module: nn.Module) -> Callable[[Tensor], None]:
        def hook(gradient: Tensor) -> None:
            if not self.backward and _is_bad(gradient):
                self.backward = (
                    f"The forward pass is finite; in the backward pass the gradient of the output of {name} "
                    f"({type(module).__name__}) is the first with {_count(gradient)}{_rows(gradient, self._rows)}: "
                    "look at what is computed from that output."
                )

        return hook


def _is_bad(value: Tensor) -> bool:
    return value.is_floating_point() and not bool(torch.isfinite(local(value.detach())).all())


def _count(value: Tensor) -> str:
    value = local(value.detach())
    counts = {"NaN": int(value.isnan().sum()), "Inf": int(value.isinf().sum())}
    return (
        " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) + f" of {value.numel():,} values"
    )


def _rows(value: Tensor, rows: int | None) -> str:
    """The affected rows of the batch, if the first dimension is the batch's."""
    value = local(value.detach())
    if rows is None or rows == 1 or not value.dim() or len(value) != rows:
        return ""
    bad = (~torch.isfinite(value)).flatten(1).any(1).nonzero().flatten().tolist()
    if len(bad) == rows:
        return " for every row of the batch"
    return f" for row{'s' if len(bad) > 1 else ''} {few(bad, most=8)} of the batch (counted from 0)"


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
