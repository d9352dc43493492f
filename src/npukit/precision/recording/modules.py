"""Track which module is running, with hooks on every module of the process and without changing the model."""

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
    """A running module, and the row that describes it."""

    __slots__ = ("backward", "called_from", "forward", "gradients", "inputs", "is_recompute", "path", "wanted")

    def __init__(self, path: str, kind: str, number: int, called_from: tuple[Any, tuple[Frame, ...]]) -> None:
        self.path = path
        self.forward = f"Module.{path}.{kind}.forward.{number}"
        self.backward = f"Module.{path}.{kind}.backward.{number}"
        self.called_from = called_from  # torch's frame that runs it, and the stack at that point
        self.is_recompute = torch._C._current_graph_task_id() != -1
        self.inputs: Text | None = None
        self.wanted = 0  # gradients of inputs that have not arrived yet
        self.gradients: dict[str, list[Late]] = {"input": [], "output": []}


class ModuleTracker:
    """Keeps the stack of running modules, and calls back when a module begins or ends.

    The first module that is called on its own is the root, and paths are relative to it. Paths below other roots start
    with the root's class.
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
        """Track every module from now on."""
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
            # torch does not detect this hook, and stops compiling modules while it is registered.
            getattr(torch_module, "_global_forward_hooks_with_kwargs", {}).pop(handle.id, None)

    def begin_step(self) -> None:
        """Restart the count of each module's calls at 0."""
        self._numbers.clear()

    def parameters(self) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
        """All parameters of the modules seen so far, as module path, module, name and parameter."""
        for path, module in self.modules.items():
            for name, parameter in parameters_of(module).items():
                yield path, module, name, parameter

    @_disable_dynamo  # a compiled model runs in pieces, and its modules are seen between them
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
        if len(rest) != 2:  # torch omits the keywords if forward raised
            while self.stack and self.stack.pop().path != path:
                pass
            return
        keywords, output = rest
        while self.stack:  # a module whose forward raised may never have left
            call = self.stack.pop()
            if call.path == path:
                self._ended(call, module, keywords, output)
                call.called_from = None, ()  # a frame keeps all local variables of its function alive
                break

    @_disable_dynamo
    def _leave_without_keywords(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """The signature before torch 2.6. There is no output if forward raised."""
        self._leave(module, inputs, *(() if output is None else ({}, output)))

    def _name(self, module: nn.Module) -> str:
        """Name a new module and all modules below it."""
        if not self.stack:
            first = not any(module == ROOT for module in self.modules)
            prefix = "" if first else type(module).__name__
            number = 1
            while prefix in self.modules and self.modules[prefix] is not module:
                number += 1
                prefix = f"{type(module).__name__}#{number}"
        else:  # created while its parent runs, or hidden from it in a plain list
            parent = self.stack[-1].path
            prefix = f"{'' if parent == ROOT else parent + '.'}{type(module).__name__}"
        for name, inner in module.named_modules():
            path = ".".join(part for part in (prefix, name) if part) or ROOT
            self._paths[id(inner)] = path
            self.modules[path] = inner
        return self._paths[id(module)]


def _frame_of_torch() -> Any:
    """The frame that calls a module and exists while it runs. Frames that disable dynamo come between it and ours."""
    frame: Any = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != torch_module.__file__:
        frame = frame.f_back
    return frame


def _is_of_compile(module: nn.Module, path: str | None, running: list[ModuleCall]) -> bool:
    """Whether torch.compile created a module, as a wrapper around a model or for a compiled piece of it."""
    kind = type(module).__name__
    return kind == "OptimizedModule" or (kind == "GraphModule" and path is None and bool(running))


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """A module's own parameters. `named_parameters` returns the same, but takes as long as running the module."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in nested lists, dictionaries and plain objects such as transformers' outputs."""
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
