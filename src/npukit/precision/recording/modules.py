"""Which module is running: hooks on every module of the process, without touching the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn.modules import module as torch_module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from npukit.precision.recording.files import Frame
from npukit.precision.recording.stacks import user_stack
from npukit.precision.recording.tensors import Late, Text

ROOT = "root"
_NESTS = (list, tuple, dict)


class ModuleCall:
    """A module that runs, and the rows that tell of it."""

    __slots__ = ("backward", "called_from", "forward", "gradients", "inputs", "is_recompute", "path", "wanted")

    def __init__(self, path: str, kind: str, number: int, called_from: tuple[Any, tuple[Frame, ...]]) -> None:
        self.path = path
        self.forward = f"Module.{path}.{kind}.forward.{number}"
        self.backward = f"Module.{path}.{kind}.backward.{number}"
        self.called_from = called_from  # torch's frame that runs it, while it does, and the stack
        self.is_recompute = torch._C._current_graph_task_id() != -1
        self.inputs: Text | None = None
        self.wanted = 0  # gradients of inputs that have not come yet
        self.gradients: dict[str, list[Late]] = {"input": [], "output": []}


class ModuleTracker:
    """Keeps the stack of running modules, and calls back when one begins and ends.

    The first module that is called on its own is the root, and paths begin below it; those of further roots begin with
    their class.
    """

    def __init__(
        self,
        began: Callable[[ModuleCall, nn.Module, Any], None],
        ended: Callable[[ModuleCall, nn.Module, Any, Any], None],
    ) -> None:
        self.stack: list[ModuleCall] = []
        self.modules: dict[str, nn.Module] = {}
        self._paths: dict[int, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._began, self._ended = began, ended
        self._handles: list[Any] = []

    def start(self) -> None:
        """Follow every module from now on."""
        leave: dict[str, Any] = {"hook": self._leave, "with_kwargs": True}
        if not hasattr(torch_module, "_global_forward_hooks_with_kwargs"):
            leave = {"hook": self._leave_without_keywords}
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(**leave, always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
            # torch forgets this one, and compiles no module any more while it is there.
            getattr(torch_module, "_global_forward_hooks_with_kwargs", {}).pop(handle.id, None)

    def begin_step(self) -> None:
        """Count the calls of each module from 0 again."""
        self._numbers.clear()

    def parameters(self) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
        """Every parameter of the modules seen so far: path and module, its name there, and itself."""
        for path, module in self.modules.items():
            for name, parameter in parameters_of(module).items():
                yield path, module, name, parameter

    @_disable_dynamo  # a compiled model runs in pieces, between which its modules are seen
    def _enter(self, module: nn.Module, inputs: Any) -> None:
        path = self._paths.get(id(module))
        if _is_of_compile(module, path, self.stack):
            return
        if path is None or self.modules.get(path) is not module:
            path = self._name(module)
        kind = type(module).__name__
        number = self._numbers.get((path, kind), 0)
        self._numbers[path, kind] = number + 1
        above = self.stack[-1].called_from if self.stack else (None, ())
        call = ModuleCall(path, kind, number, (_frame_of_torch(), user_stack(above)))
        self.stack.append(call)
        self._began(call, module, inputs)

    @_disable_dynamo
    def _leave(self, module: nn.Module, inputs: Any, *rest: Any) -> None:
        path = self._paths.get(id(module))
        if _is_of_compile(module, path, self.stack):
            return
        if len(rest) != 2:  # torch leaves the keywords out where forward raised
            while self.stack and self.stack.pop().path != path:
                pass
            return
        keywords, output = rest
        while self.stack:  # one whose forward raised may never have left
            call = self.stack.pop()
            if call.path == path:
                self._ended(call, module, keywords, output)
                call.called_from = None, ()  # a frame keeps all that its function holds
                break

    @_disable_dynamo
    def _leave_without_keywords(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """As torch before 2.6 has it; there is no output where forward raised."""
        self._leave(module, inputs, *(() if output is None else ({}, output)))

    def _name(self, module: nn.Module) -> str:
        """Name a module that nobody has seen, and all below it."""
        if not self.stack:
            first = not any(module == ROOT for module in self.modules)
            prefix = "" if first else type(module).__name__
            number = 1
            while prefix in self.modules and self.modules[prefix] is not module:
                number += 1
                prefix = f"{type(module).__name__}#{number}"
        else:  # made while its parent runs, or hidden from it in a plain list
            parent = self.stack[-1].path
            prefix = f"{'' if parent == ROOT else parent + '.'}{type(module).__name__}"
        for name, inner in module.named_modules():
            path = ".".join(part for part in (prefix, name) if part) or ROOT
            self._paths[id(inner)] = path
            self.modules[path] = inner
        return self._paths[id(module)]


def _frame_of_torch() -> Any:
    """The frame that calls a module and so lasts as long; between it and ours are those that turn dynamo off."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != torch_module.__file__:
        frame = frame.f_back
    return frame


def _is_of_compile(module: nn.Module, path: str | None, running: list[ModuleCall]) -> bool:
    """Whether torch.compile made a module: around a model, or of a piece of one that it compiled."""
    kind = type(module).__name__
    return kind == "OptimizedModule" or (kind == "GraphModule" and path is None and bool(running))


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module itself; `named_parameters` gives the same, but takes a module's time."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a nest of lists, dictionaries and plain objects such as transformers' outputs."""
    if isinstance(value, Tensor):
        return [value]
    if not isinstance(value, _NESTS):
        return []
    tensors = []
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, Tensor):
            tensors.append(item)
        elif isinstance(item, _NESTS):
            tensors += tensors_in(item)
    return tensors
