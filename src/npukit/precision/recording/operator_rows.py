"""Rows of operators: their inputs and outputs, their module, phase and line of code."""

from __future__ import annotations

import torch
from torch import Tensor

from npukit.precision.recording.files import Frame
from npukit.precision.recording.modules import ModuleCall, ModuleTracker, tensors_in
from npukit.precision.recording.operators import OperatorCall, OperatorMode
from npukit.precision.recording.rows import StepRows, below
from npukit.precision.recording.stacks import user_stack
from npukit.precision.recording.tensors import Hollow, Late, storage_of


class OperatorRows:
    """Observes operators."""

    def __init__(self, rows: StepRows, tracker: ModuleTracker) -> None:
        self.mode = OperatorMode(self._before, self._after, self._moved, rows.tensors.allocated, lambda: rows.recording)
        self.optimizing = False
        self._rows, self._tracker = rows, tracker
        self._of_node: dict[int, tuple[ModuleCall | None, tuple[Frame, ...]]] = {}  # by autograd's sequence number
        self._arriving: dict[int, list[tuple[Late, Tensor, str]]] = {}  # results of collectives, by storage

    def begin_step(self) -> None:
        self._of_node.clear()

    def end_step(self) -> None:
        self._arriving.clear()

    def _before(self, call: OperatorCall) -> None:
        call.module, call.stack, call.phase = self._place()
        rows, operator, module = self._rows, call.operator, call.module
        only = rows.options.only
        if only and (module is None or not below(module.path, only)):
            return
        if self._arriving and not operator.is_collective:
            self._observe_arrived(call)
        number = rows.calls[operator.name]
        rows.calls[operator.name] += 1
        call.row = f"{operator.name}.{number}.forward"
        rows.path = module.path if module else ""
        describe = rows.tensors.describe
        arguments, keywords = call.read()
        call.given = ['{"input_args": ']
        describe(arguments, f"{call.row}.input", call.given)
        call.given.append(', "input_kwargs": ')
        describe(keywords, f"{call.row}.input", call.given)

    def _after(self, call: OperatorCall) -> None:
        rows, tensors = self._rows, self._rows.tensors
        written = list(call.written())
        for tensor in written:
            tensors.wrote(tensor, call.covered)
        if not call.row:
            return
        results = tensors_in(call.result) or written
        results += written if call.operator.silent_writes else []
        for tensor in (*results, *written):
            tensors.made(tensor, call.row)
        row = [*call.given, ', "output": ']
        if call.operator.is_collective:  # its results exist once somebody uses them
            for place, tensor in enumerate(results):
                late = Late()
                row += (", " if place else "[", late)
                arriving = late, tensor, f"{call.row}.output.{place}"
                self._arriving.setdefault(storage_of(tensor) or 0, []).append(arriving)
            row.append("]" if results else "[]")
        else:
            private = call.operator.private_results
            shown = [Hollow(tensor) if place in private else tensor for place, tensor in enumerate(results)]
            tensors.describe(shown, f"{call.row}.output", row)
        row.append(f', "phase": "{call.phase}"}}')
        rows.holds = bool(self._arriving)
        parent = "optimizer" if call.phase == "optimizer" else None
        if call.module:
            parent = call.module.backward if call.phase == "backward" else call.module.forward
        rows.add(call.row, row, call.stack, parent)

    def _moved(self, source: Tensor, result: Tensor) -> None:
        self._rows.tensors.made(result, self._rows.tensors.maker(source))

    def _place(self) -> tuple[ModuleCall | None, tuple[Frame, ...], str]:
        """The module that an operator belongs to, where it was called from, and its phase of the step."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return *self._of_node.get(node._sequence_nr(), (None, ())), "backward"
        if self.optimizing:
            return None, user_stack(), "optimizer"
        modules = self._tracker.stack
        module = modules[-1] if modules else None
        stack = user_stack(module.called_from) if module else user_stack()
        if torch.is_grad_enabled():
            # Operators without a node of their own see the number of the previous node, which does not belong to them.
            self._of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, (module, stack))
        return module, stack, "forward"

    def _observe_arrived(self, call: OperatorCall) -> None:
        """Record the results of collectives that this operator uses: they have been waited for by now."""
        for tensor in tensors_in([call.arguments, call.keywords]):
            for late, result, name in self._arriving.pop(storage_of(tensor) or 0, ()):
                late.pieces = []
                self._rows.tensors.describe(result, name, late.pieces)
