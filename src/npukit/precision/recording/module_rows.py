"""Rows of modules: their inputs, outputs and parameters, and the gradients of all of these."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from npukit.precision.recording.modules import ModuleCall, ModuleTracker, parameters_of, tensors_in
from npukit.precision.recording.rows import StepRows
from npukit.precision.recording.tensors import Late, Text, can_describe, local


class ModuleRows:
    """Observes modules. `names_makers`: record modules, and not operators, as the makers of tensors."""

    def __init__(self, rows: StepRows, names_makers: bool) -> None:
        self.tracker = ModuleTracker(self._began, self._ended)
        self._rows, self._names_makers = rows, names_makers
        self._backward: dict[ModuleCall, None] = {}  # modules still waiting for gradients, in order

    def _began(self, call: ModuleCall, module: nn.Module, inputs: Any) -> None:
        rows = self._rows
        if not rows.recording:
            return
        if len(self.tracker.stack) == 1:
            rows.tensors.hold(parameter for part in module.modules() for parameter in part._parameters.values())
        rows.path = call.path
        call.inputs = []
        rows.tensors.describe(inputs, f"{call.forward}.input", call.inputs)
        self._follow_gradients(call, "output", tensors_in(inputs))

    def _ended(self, call: ModuleCall, module: nn.Module, keywords: Any, output: Any) -> None:
        rows = self._rows
        if not rows.recording or call.inputs is None:
            return
        rows.path, name = call.path, call.forward
        describe, outputs = rows.tensors.describe, tensors_in(output)
        row: Text = ['{"input_args": ', *call.inputs, ', "input_kwargs": ']
        describe(_plain_keywords(keywords) if keywords else keywords, f"{name}.input", row)
        row.append(', "output": ')
        describe(outputs, f"{name}.output", row)
        row.append(', "parameters": ')
        describe(parameters_of(module), f"{name}.parameters", row)
        row.append(', "is_recompute": true}' if call.is_recompute else ', "is_recompute": false}')
        if self._names_makers:
            for tensor in outputs:
                rows.tensors.made(tensor, name)
        if keywords:
            self._follow_gradients(call, "output", tensors_in(keywords))
        self._follow_gradients(call, "input", outputs)
        stack = self.tracker.stack
        rows.add(name, row, call.called_from[1], stack[-1].forward if stack else None)

    def _follow_gradients(self, call: ModuleCall, side: str, tensors: list[Tensor]) -> None:
        """Record the gradients of a module's inputs or outputs, with hooks on the tensors themselves.

        Hooks on the module would add a node to the graph and so change the order in which gradients are added.
        """
        if not torch.is_grad_enabled():
            return
        step, gradients = self._rows.step, call.gradients[side]
        for tensor in tensors:
            if tensor.requires_grad and (type(tensor) is Tensor or can_describe(local(tensor))):
                call.wanted += side == "output"
                _watch(tensor, step, self._came).places.append((call, side, len(gradients)))
                gradients.append(Late())

    def _came(self, watch: _Watch, gradient: Tensor) -> None:
        rows = self._rows
        if rows.step != watch.step or not rows.recording:
            return
        pieces: Text = []
        for call, side, place in watch.places:
            if not pieces or rows.options.tensors:  # each has a file of its own
                rows.path, pieces = call.path, []
                rows.tensors.describe(gradient, f"{call.backward}.{side}.{place}", pieces)
            call.gradients[side][place].pieces = pieces
            call.wanted -= side == "output"
            if call.wanted == 0:
                self._backward.pop(call, None)
                self._end_backward(call)
            else:
                self._backward[call] = None

    def end_backwards(self) -> None:
        """Write the gradients collected so far if the rest will never come, as for unused outputs."""
        for call in self._backward:
            self._end_backward(call)
        self._backward.clear()

    def _end_backward(self, call: ModuleCall) -> None:
        row: Text = ['{"input": ']
        for side in ("input", "output"):
            row.append("[" if side == "input" else '], "output": [')
            for place, gradient in enumerate(call.gradients[side]):
                row += (", ", *gradient.pieces) if place else gradient.pieces
        self._rows.add(call.backward, [*row, "]}"], (), None)


class _Watch:
    """A single hook on a tensor for all modules that receive or return it, because one hook each would be slow."""

    __slots__ = ("_came", "places", "step", "version")

    def __init__(self, came: Callable[[_Watch, Tensor], None], step: int, version: int) -> None:
        self._came, self.step, self.version = came, step, version
        self.places: list[tuple[ModuleCall, str, int]] = []

    def __call__(self, gradient: Tensor) -> None:
        self._came(self, gradient)


def _watch(tensor: Tensor, step: int, came: Callable[[_Watch, Tensor], None]) -> _Watch:
    """The tensor's last hook, if it is ours and the tensor has not changed since; otherwise a new one."""
    hooks, version = tensor._backward_hooks, tensor._version
    if hooks is None:  # does what `register_hook` does, which takes four times as long because it creates a handle
        hooks = tensor._backward_hooks = OrderedDict()
        if tensor.grad_fn is not None:
            tensor.grad_fn._register_hook_dict(tensor)
    last = next(reversed(hooks.values()), None)
    if type(last) is not _Watch or last.step != step or last.version != version:
        last = _Watch(came, step, version)
        hooks[id(last)] = last
    return last


def _plain_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without objects such as caches, of which only the class could be recorded."""
    return {name: value for name, value in keywords.items() if isinstance(value, Tensor | bool | int | float | str)}
