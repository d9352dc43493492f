"""Observe a training process: the work it does, and what uses its memory at the peak."""

from __future__ import annotations

import re
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from npukit.facts.planning import planning
from npukit.performance.plan.operators import flops_of, kind_of, moved_bytes
from npukit.performance.plan.walked import Held, Walked
from npukit.performance.plan.work import PlannedWork

BLOCK = 512  # the allocator's granularity
LARGE_ON_HOST = 2**24  # a tensor of zeros with at most this many elements is only a source to copy from
STEPS_ELSEWHERE = 10  # after this many passes, assume that a script does not use the device


class WalkIsOver(BaseException):
    """Ends the walk. Not an Exception, so that no handler of the program catches it."""


class Block:
    """The memory of one storage over its lifetime."""

    __slots__ = ("born", "died", "module", "role", "size")

    def __init__(self, size: int, born: int, role: str, module: str) -> None:
        self.size, self.born, self.role, self.module = -(-size // BLOCK) * BLOCK, born, role, module
        self.died: int | None = None


_Mode: Any = TorchDispatchMode  # storages have no types


class Observer(_Mode):  # type: ignore[misc]
    """Observes every operator of the process; `walked()` is the result.

    >>> with Observer(steps=2) as observer:
    ...     train()
    >>> observer.walked().peak
    """

    def __init__(self, steps: int, device: str = "npu") -> None:
        super().__init__()
        self._device, self._steps_wanted = device, steps
        self.steps = 0
        self._updated = False  # whether the last event was an update of the weights, not yet followed by a forward pass
        self._has_optimizer = self._has_gradients = False
        self._elsewhere = 0  # forward passes of a training that does not use the device
        self._clock = 0
        self._blocks: list[Block] = []
        self._of_storage: dict[int, Block] = {}
        self._live = self._highest = self._highest_at = 0
        self._modules: list[str] = []
        self._names: dict[int, str] = {}
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # the modules without a parent
        self._in_optimizer = False
        self._work: list[Counter[tuple[Any, ...]]] = [Counter()]  # per step

    def __enter__(self) -> Any:
        self._hooks = [
            nn.modules.module.register_module_forward_pre_hook(self._enter_module),
            nn.modules.module.register_module_forward_hook(self._leave_module, always_call=True),
            register_optimizer_step_pre_hook(self._before_update),
            register_optimizer_step_post_hook(self._after_update),
        ]
        self._resize = torch.UntypedStorage.resize_
        self._watch_resizing()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        instead = _on_host(func, args, kwargs)
        result = func(*args, **kwargs) if instead is None else instead
        if func._schema.name == "npu::npu_change_data_ptr":
            self._moved(*args[:2])
            return result
        outputs = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor)]
        for tensor in outputs:
            self._allocated(tensor)
        inputs = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
        if not self._has_optimizer:
            self._look_for_update(func, inputs)
        if any(tensor.device.type == self._device for tensor in (*outputs, *inputs)):
            self._count(func, args, kwargs, result, inputs, outputs)
        return result

    def _count(
        self, func: Any, args: Any, kwargs: Any, result: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        kind = kind_of(func)
        if kind:
            flops = flops_of(func, args, kwargs, result) if kind != "vector" else 0.0
            phase = self._phase()
            self._work[-1][kind, phase == "optimizer", _issuing(phase), flops, moved_bytes(inputs, outputs)] += 1

    def collective(self, name: str, sent: float, tensors: list[Tensor]) -> None:
        """Call for every collective."""
        if any(tensor.device.type == self._device for tensor in tensors):
            self._work[-1]["collective", self._phase() == "optimizer", 1.0, 0.0, sent] += 1
            for tensor in tensors:
                self._call(tensor, "communication")

    # Memory

    def _allocated(self, tensor: Tensor) -> None:
        for part in _plain(tensor):
            if part.device.type != self._device:
                continue
            storage = part.untyped_storage()
            if id(storage) not in self._of_storage and storage.nbytes():
                self._hold(storage, storage.nbytes(), self._phase())

    def _hold(self, storage: Any, size: int, role: str) -> None:
        module = self._modules[-1] if self._modules else ""
        self._clock += 1
        block = Block(size, self._clock, role, module)
        self._blocks.append(block)
        key = id(storage)
        self._of_storage[key] = block
        weakref.finalize(storage, self._freed, key).atexit = False
        self._live += block.size
        if self._live > self._highest:
            self._highest, self._highest_at = self._live, self._clock

    def _freed(self, key: int) -> None:
        self._end(self._of_storage.pop(key, None))

    def _end(self, block: Block | None) -> None:
        if block is not None and block.died is None:
            self._clock += 1
            block.died = self._clock
            self._live -= block.size

    def _moved(self, tensor: Tensor, into: Tensor) -> None:
        """Account for torch_npu's fused optimizers, which move tensors into one large one and free their own memory."""
        mine, other = id(tensor.untyped_storage()), id(into.untyped_storage())
        if mine in self._of_storage and other in self._of_storage:
            self._end(self._of_storage[mine])
            self._of_storage[other].role = self._of_storage[mine].role
            self._of_storage[mine] = self._of_storage[other]

    def _watch_resizing(self) -> None:
        """Observe the storages of FSDP, which resizes them to gather weights."""
        resize, observer = self._resize, self

        def resize_(storage: Any, size: int) -> Any:
            result = resize(storage, size)
            if storage.device.type == observer._device:
                observer._freed(id(storage))
                if size:
                    observer._hold(storage, size, "communication")
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]

    def _call(self, tensor: Tensor | None, role: str) -> None:
        for part in _plain(tensor) if tensor is not None else ():
            block = self._of_storage.get(id(part.untyped_storage()))
            if block and block.role not in ("weights", "gradients", "optimizer"):
                block.role = role

    # What the program is doing

    def _phase(self) -> str:
        if self._in_optimizer:
            return "optimizer"
        if self._modules:
            return "activations"
        return "backward" if torch._C._current_autograd_node() is not None else "other"

    def _enter_module(self, module: nn.Module, _args: Any) -> None:
        if self._updated:
            self._start_step()
        elif self._has_gradients and not self._blocks and not self._modules:
            self._elsewhere += 1
            if self._elsewhere >= STEPS_ELSEWHERE:
                raise WalkIsOver
        if id(module) not in self._names:
            for name, part in module.named_modules():
                self._names.setdefault(id(part), re.sub(r"\b\d+\b", "*", name) or type(part).__name__)
            for tensor in (*module.parameters(), *module.buffers()):
                self._call(tensor, "weights")
            self._roots.add(module)
        self._modules.append(self._names[id(module)])

    def _leave_module(self, *_: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _look_for_update(self, func: Any, inputs: list[Tensor]) -> None:
        """Detect a script that updates its weights itself, as `p.data.add_(p.grad, alpha=-rate)` does."""
        phase = self._phase()
        if phase == "backward":
            self._has_gradients = True
        elif phase == "other" and self._has_gradients and inputs and func._schema.is_mutable and not self._updated:
            block = self._of_storage.get(id(inputs[0].untyped_storage())) if inputs[0].layout == torch.strided else None
            if block is not None and block.role == "weights":
                self._updated = True
                for parameter in (parameter for module in self._roots for parameter in module.parameters()):
                    self._call(parameter.grad, "gradients")

    def _before_update(self, optimizer: Any, *_: Any) -> None:
        self._has_optimizer = self._in_optimizer = True
        self._label(optimizer)

    def _after_update(self, optimizer: Any, *_: Any) -> None:
        self._label(optimizer)
        self._in_optimizer = False
        self._updated = True

    def _start_step(self) -> None:
        """Start the next step. Several optimizers, or one called for each group, count as one step."""
        self._updated = False
        self.steps += 1
        if self.steps >= self._steps_wanted:
            raise WalkIsOver
        self._work.append(Counter())

    def _label(self, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._call(parameter.grad, "gradients")
                self._call(parameter, "optimizer")  # except for a weight, which is copied to be updated
        for state in optimizer.state.values():
            for value in state.values():
                self._call(value if isinstance(value, Tensor) else None, "optimizer")

    # What came of it

    @property
    def saw_device(self) -> bool:
        return bool(self._blocks)

    def walked(self) -> Walked:
        """The result so far."""
        memory = torch.get_device_module(self._device)
        peak, reserved = memory.max_memory_allocated(), memory.max_memory_reserved()
        return Walked(
            peak=peak,
            reserved=reserved,
            held=tuple(sorted(self._peak_holders(peak), key=lambda held: -held.bytes)),
            steps=self.steps + self._updated,
            work=tuple(self._last_step(in_optimizer=False)),
            update=tuple(self._last_step(in_optimizer=True)),
        )

    def _peak_holders(self, peak: int) -> Iterator[Held]:
        totals: dict[tuple[str, str], int] = defaultdict(int)
        for block in self._blocks:
            if block.born <= self._highest_at and (block.died is None or block.died > self._highest_at):
                by_module = block.module if block.role == "activations" else ""
                totals[block.role, by_module] += block.size
        yield from (Held(role, module, size) for (role, module), size in totals.items())
        yield Held("inside operators", "", max(0, peak - self._highest))

    def _last_step(self, in_optimizer: bool) -> Iterable[PlannedWork]:
        step = self._work[-1]
        for (kind, of_optimizer, cost, flops, moved), calls in step.items():
            if of_optimizer == in_optimizer:
                yield PlannedWork(kind, flops * calls, moved * calls, cost * calls)


def _issuing(phase: str) -> float:
    """The host's cost of issuing an operator, relative to one issued from Python."""
    if torch._C._current_autograd_node() is None:
        return 1.0
    return planning().issued_by_autograd if phase == "backward" else planning().computed_again


def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors inside a tensor, which may be a DTensor."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        yield from _plain(local)
    elif tensor.layout == torch.strided and not tensor.is_meta:
        yield tensor


def _on_host(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    """The result of an operator that would fill gigabytes of host memory, allocated but never written."""
    if func is torch.ops.aten.zeros.default and torch.device(kwargs.get("device") or "cpu").type == "cpu":
        return torch.empty(*args, **kwargs) if torch.Size(args[0]).numel() > LARGE_ON_HOST else None
    source = args[0] if args and isinstance(args[0], Tensor) else None
    if source is None or source.device.type != "cpu" or source.numel() <= LARGE_ON_HOST:
        return None
    if func in (torch.ops.aten.copy_.default, torch.ops.aten.zero_.default):
        return source
    target = torch.device(kwargs.get("device") or "cpu").type
    if func in (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default) and target == "cpu":
        return torch.empty_like(source, dtype=kwargs.get("dtype"))
    return None
