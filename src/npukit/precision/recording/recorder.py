"""Records a run: module hooks and, at level ops, a dispatch mode; steps end with the optimizer's."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from npukit.precision.recording.environment import write_environment
from npukit.precision.recording.files import Frame, StepFiles
from npukit.precision.recording.modules import ModuleCall, ModuleTracker, tensors_in
from npukit.precision.recording.operators import OperatorCall, OperatorMode, user_stack
from npukit.precision.recording.options import Options
from npukit.precision.recording.tensors import Tensors, can_describe, storage_of

_FLUSH = 512  # tensors whose statistics are fetched at once


class Recorder:
    """Records what runs between `start` and `stop`, or in a `with` block."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.number = 0  # of the step
        self._files = StepFiles(options, 0, 0)
        self._tensors = Tensors(self._save if options.tensors else None, options.fresh)
        self._rows: dict[str, Any] = {}
        self._stacks: dict[str, tuple[Frame, ...]] = {}
        self._parents: dict[str, str | None] = {}
        self._calls: Counter[str] = Counter()
        self._backward: list[ModuleCall] = []  # whose gradients have not all come
        self._of_node: dict[int, tuple[ModuleCall | None, tuple[Frame, ...]]] = {}  # by autograd's sequence number
        self._arriving: dict[int, list[tuple[list[Any], int, Tensor, str]]] = {}  # by storage: results of collectives
        self._optimizer: int | None = None  # the one whose steps are counted
        self._optimizing = self._running = False
        self._path = ""  # of the module whose tensors are being described
        self._modules = ModuleTracker(self._module_began, self._module_ended)
        self._mode: OperatorMode | None = None
        if options.level == "ops":
            self._mode = OperatorMode(self._before, self._after, self._moved, lambda: self._recording)
        self._around = contextlib.ExitStack()

    def __enter__(self) -> Recorder:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to record."""
        self._running = True
        write_environment(self.options.output)
        self._modules.start()
        self._around.callback(self._modules.stop)
        for handle in (
            register_optimizer_step_pre_hook(self._optimizer_began),
            register_optimizer_step_post_hook(self._optimizer_ended),
        ):
            self._around.callback(handle.remove)
        if self._mode:
            self._around.enter_context(self._mode)
        self._begin_step(0)

    def stop(self) -> None:
        """Write what is left, and record no more."""
        if self._running:
            self._running = False
            self._around.close()
            self._end_step()

    def step(self) -> None:
        """End a step; training loops need not call it, `optimizer.step()` does."""
        self._end_step()
        self._begin_step(self.number + 1)
        if self.options.steps is not None and self.number > max(self.options.steps, default=-1):
            self._running = False
            if self._mode is None:
                self._around.close()  # full speed again; a dispatch mode can only leave in its turn

    @property
    def _recording(self) -> bool:
        options = self.options
        return (
            self._running
            and (options.steps is None or self.number in options.steps)
            and (options.ranks is None or rank() in options.ranks)
        )

    def _begin_step(self, number: int) -> None:
        self.number = number
        self._files = StepFiles(self.options, number, rank())
        self._calls.clear()
        self._modules.begin_step()
        self._tensors.begin_step()
        self._of_node.clear()

    def _end_step(self) -> None:
        self._end_backwards()
        self._arriving.clear()
        self._flush()
        self._files.close()
        self._tensors.forget()

    def _flush(self) -> None:
        self._tensors.fetch()
        if self._rows:
            self._files.add(self._rows, self._stacks, self._parents)
        self._rows, self._stacks, self._parents = {}, {}, {}

    def _save(self, name: str, tensor: Tensor) -> str:
        only = self.options.only
        return self._files.save(name, tensor) if not only or _below(self._path, only) else ""

    def _add(self, name: str, row: dict[str, Any], stack: tuple[Frame, ...], parent: str | None) -> None:
        self._rows[name], self._stacks[name], self._parents[name] = row, stack, parent
        if len(self._tensors) >= _FLUSH and not self._arriving:
            self._flush()

    # Modules

    def _module_began(self, call: ModuleCall, inputs: Any) -> None:
        if self._recording:
            self._path = call.path
            call.inputs = self._tensors.describe(list(inputs), f"{call.row('forward')}.input")
            self._follow_gradients(call, "output", inputs)

    def _module_ended(self, call: ModuleCall, module: nn.Module, keywords: Any, output: Any) -> None:
        if not self._recording or call.inputs is None:
            return
        self._path, name = call.path, call.row("forward")
        describe = self._tensors.describe
        parameters = dict(module.named_parameters(recurse=False))
        row = {
            "input_args": call.inputs,
            "input_kwargs": describe(_plain_keywords(keywords), f"{name}.input"),
            "output": describe(list(tensors_in(output)), f"{name}.output"),
            "parameters": describe(parameters, f"{name}.parameters"),
            "is_recompute": call.is_recompute,
        }
        if self._mode is None:
            for tensor in tensors_in(output):
                self._tensors.made(tensor, name)
        self._follow_gradients(call, "output", keywords)
        self._follow_gradients(call, "input", output)
        parent = self._modules.stack[-1].row("forward") if self._modules.stack else None
        self._add(name, row, user_stack(), parent)

    def _follow_gradients(self, call: ModuleCall, side: str, values: Any) -> None:
        """Note the gradients of what a module was given or returned, by hooks on the tensors themselves.

        Hooks on a module would put a node of their own into the graph, and so change the order of additions.
        """
        if not torch.is_grad_enabled():
            return
        for tensor in tensors_in(values):
            if tensor.requires_grad and can_describe(getattr(tensor, "_local_tensor", tensor)):
                place = len(call.gradients[side])
                call.gradients[side].append(None)
                call.wanted += side == "output"
                tensor.register_hook(self._gradient_hook(call, side, place))  # type: ignore[no-untyped-call]

    def _gradient_hook(self, call: ModuleCall, side: str, place: int) -> Any:
        step = self.number

        def came(gradient: Tensor) -> None:
            if not self._recording or self.number != step:
                return
            if call not in self._backward:
                self._backward.append(call)
            self._path = call.path
            name = f"{call.row('backward')}.{side}.{place}"
            call.gradients[side][place] = self._tensors.describe(gradient, name)
            call.wanted -= side == "output"
            if call.wanted == 0:
                self._backward.remove(call)
                self._end_backward(call)

        return came

    def _end_backwards(self) -> None:
        """Note what has come of gradients that will not come whole, such as those of unused outputs."""
        for call in self._backward:
            self._end_backward(call)
        self._backward.clear()

    def _end_backward(self, call: ModuleCall) -> None:
        self._add(call.row("backward"), dict(call.gradients), (), None)

    # Optimizers

    def _optimizer_began(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = True
        if not self._recording:
            return
        self._end_backwards()
        gradients: dict[str, dict[str, Any]] = {}
        for path, module, name, parameter in self._modules.parameters():
            if parameter.grad is not None:
                self._path, row = path, f"Module.{path}.{type(module).__name__}.parameters_grad.0"
                gradient = self._tensors.describe(parameter.grad, f"{row}.{name}")
                gradients.setdefault(row, {})[name] = [gradient]
        for row, found in gradients.items():
            if row not in self._rows:
                self._add(row, found, (), row.replace(".parameters_grad.", ".backward."))

    def _optimizer_ended(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._optimizing = False
        if self._recording:
            self._tensors.forget()
            name = f"Optimizer.{type(optimizer).__name__}.{self._calls['optimizer']}.forward"
            self._calls["optimizer"] += 1
            own = {id(each) for group in optimizer.param_groups for each in group["params"]}
            mine = [(path, name, each) for path, _, name, each in self._modules.parameters() if id(each) in own]
            self._path = ""
            row = {
                "input_args": [],
                "input_kwargs": self._tensors.describe(_settings(optimizer), name),
                "output": [self._tensors.describe(each, f"{name}.output.{n}") for n, (_, _, each) in enumerate(mine)],
                "names": [f"{path}.{name}" for path, name, _ in mine],
                "phase": "optimizer",
            }
            self._add(name, row, user_stack(), None)
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer) and self._running:
            self.step()

    # Operators

    def _before(self, call: OperatorCall) -> None:
        call.module, call.stack, call.phase = self._place()
        only, module = self.options.only, call.module
        if only and (module is None or not _below(module.path, only)):
            return
        if self._arriving and not call.is_collective:
            self._observe_arrived(call)
        number = self._calls[call.name]
        self._calls[call.name] += 1
        call.row = f"{call.name}.{number}.forward"
        self._path = module.path if module else ""
        describe = self._tensors.describe
        arguments, keywords = call.read()
        call.given = describe(arguments, f"{call.row}.input"), describe(keywords, f"{call.row}.input")

    def _after(self, call: OperatorCall) -> None:
        written = list(call.written())
        for tensor in written:
            self._tensors.wrote(tensor)
        if not call.row:
            return
        results = list(tensors_in(call.result)) or written
        for tensor in (*results, *written):
            self._tensors.made(tensor, call.row)
        if call.is_collective:  # its results are there when somebody uses them
            outputs: list[Any] = [None] * len(results)
            for place, tensor in enumerate(results):
                arriving = outputs, place, tensor, f"{call.row}.output.{place}"
                self._arriving.setdefault(storage_of(tensor) or 0, []).append(arriving)
        else:
            outputs = self._tensors.describe(results, f"{call.row}.output")
        row = {"input_args": call.given[0], "input_kwargs": call.given[1], "output": outputs, "phase": call.phase}
        parent = "optimizer" if call.phase == "optimizer" else None
        if call.module:
            parent = call.module.row("backward" if call.phase == "backward" else "forward")
        self._add(call.row, row, call.stack, parent)

    def _moved(self, source: Tensor, result: Tensor) -> None:
        self._tensors.made(result, self._tensors.maker(source))

    def _place(self) -> tuple[ModuleCall | None, tuple[Frame, ...], str]:
        """The module that an operator belongs to, where it was called from, and in which phase of a step."""
        node = torch._C._current_autograd_node()
        if node is not None:
            return *self._of_node.get(node._sequence_nr(), (None, ())), "backward"
        if self._optimizing:
            return None, user_stack(), "optimizer"
        module, stack = (self._modules.stack[-1] if self._modules.stack else None), user_stack()
        if torch.is_grad_enabled():
            # Operators that make no node of their own see the number of the one before them, which is not theirs.
            self._of_node.setdefault(torch._C._autograd._get_sequence_nr() - 1, (module, stack))
        return module, stack, "forward"

    def _observe_arrived(self, call: OperatorCall) -> None:
        """Look at the results of collectives that this operator uses: by now somebody has waited for them."""
        for tensor in tensors_in([call.arguments, call.keywords]):
            for outputs, place, result, name in self._arriving.pop(storage_of(tensor) or 0, ()):
                outputs[place] = self._tensors.describe(result, name)


def _below(path: str, only: str) -> bool:
    return path == only or path.startswith(f"{only}.")


def _plain_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without objects such as caches, of which only the class could be told."""
    return {name: value for name, value in keywords.items() if isinstance(value, Tensor | bool | int | float | str)}


def _settings(optimizer: Any) -> dict[str, Any]:
    """Learning rate, decay and whatever else the first group of parameters has."""
    return {
        name: value for name, value in optimizer.param_groups[0].items() if isinstance(value, bool | int | float | str)
    }


def rank() -> int:
    """The number of this process in a job."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))
