"""Rows of modules: what goes in and comes out, their parameters, and the gradients of all of these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npukit.precision.recording.modules import ModuleCall, ModuleTracker, parameters_of, tensors_in
from npukit.precision.recording.rows import Rows
from npukit.precision.recording.stacks import user_stack
from npukit.precision.recording.tensors import Late, Text, can_describe, local


class ModuleRows:
    """Observes modules. At level ops operators tell who made a tensor, else modules do (`names_makers`)."""

    def __init__(self, rows: Rows, names_makers: bool) -> None:
        self.tracker = ModuleTracker(self._began, self._ended)
        self._rows, self._names_makers = rows, names_makers
        self._backward: dict[ModuleCall, None] = {}  # those whose gradients have not all come, in order

    def _began(self, call: ModuleCall, module: nn.Module, inputs: Any) -> None:
        rows = self._rows
        if not rows.recording:
            return
        if len(self.tracker.stack) == 1:
            rows.tensors.measure(each for part in module.modules() for each in part._parameters.values())
        rows.path = call.path
        call.inputs = []
        rows.tensors.describe(inputs, f"{call.forward}.input", call.inputs)
        self._follow_gradients(call, "output", inputs)

    def _ended(self, call: ModuleCall, module: nn.Module, keywords: Any, output: Any) -> None:
        rows = self._rows
        if not rows.recording or call.inputs is None:
            return
        rows.path, name = call.path, call.forward
        describe, outputs = rows.tensors.describe, list(tensors_in(output))
        row: Text = ['{"input_args": ', *call.inputs, ', "input_kwargs": ']
        describe(_plain_keywords(keywords), f"{name}.input", row)
        row.append(', "output": ')
        describe(outputs, f"{name}.output", row)
        row.append(', "parameters": ')
        describe(parameters_of(module), f"{name}.parameters", row)
        row.append(f', "is_recompute": {"true" if call.is_recompute else "false"}}}')
        if self._names_makers:
            for tensor in outputs:
                rows.tensors.made(tensor, name)
        self._follow_gradients(call, "output", keywords)
        self._follow_gradients(call, "input", outputs)
        stack = self.tracker.stack
        rows.add(name, row, user_stack(), stack[-1].forward if stack else None)

    def _follow_gradients(self, call: ModuleCall, side: str, values: Any) -> None:
        """Note the gradients of what a module was given or returned, by hooks on the tensors themselves.

        Hooks on a module would put a node of their own into the graph, and so change the order of additions.
        """
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(values):
            if tensor.requires_grad and can_describe(local(tensor)):
                place = len(call.gradients[side])
                call.gradients[side].append(Late())
                call.wanted += side == "output"
                tensor.register_hook(self._gradient_hook(call, side, place))  # type: ignore[no-untyped-call]

    def _gradient_hook(self, call: ModuleCall, side: str, place: int) -> Any:
        rows, step = self._rows, self._rows.step

        def came(gradient: Tensor) -> None:
            if rows.step != step or not rows.recording:
                return
            self._backward[call] = None
            rows.path = call.path
            pieces = call.gradients[side][place].pieces = []
            rows.tensors.describe(gradient, f"{call.backward}.{side}.{place}", pieces)
            call.wanted -= side == "output"
            if call.wanted == 0:
                del self._backward[call]
                self._end_backward(call)

        return came

    def end_backwards(self) -> None:
        """Note what has come of gradients that will not come whole, such as those of unused outputs."""
        for call in self._backward:
            self._end_backward(call)
        self._backward.clear()

    def _end_backward(self, call: ModuleCall) -> None:
        row: Text = ['{"input": ']
        for side in ("input", "output"):
            row.append("[" if side == "input" else '], "output": [')
            for place, each in enumerate(call.gradients[side]):
                row += (", ", each) if place else (each,)
        self._rows.add(call.backward, [*row, "]}"], (), None)


def _plain_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without objects such as caches, of which only the class could be told."""
    return {name: value for name, value in keywords.items() if isinstance(value, Tensor | bool | int | float | str)}
