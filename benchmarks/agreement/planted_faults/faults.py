"""What a fault can be: a wrong kernel, a mistake in the code, or a difference that two right runs may have."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from npukit.precision.recording.operators import operator_of

Patch = Callable[["Run"], Any]


@dataclass
class Run:
    """What a fault may change before a run begins."""

    model: Any  # a module
    batch: dict[str, Tensor]
    optimizer: torch.optim.Optimizer
    clip: float | None = 1.0
    scale: float = 1.0  # of the loss
    parts: int = 1  # that the batch is split into, with their gradients added up


class WrongKernel(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Changes the first result of one call of an operator. It lies below the recorder, which sees what it returns."""

    def __init__(self, op: str, number: int, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.op, self.left, self._change = op, number, change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        operator = operator_of(func)
        if operator.computes and operator.name.partition(".")[2] == self.op:
            self.left -= 1
            if self.left == -1:
                results = [result] if isinstance(result, Tensor) else result
                first = next(value for value in results if isinstance(value, Tensor))
                first.copy_(self._change(first.clone()))
        return result


@dataclass(frozen=True)
class Fault:
    model: str
    name: str
    op: str = ""
    number: int = 0
    change: Callable[[Tensor], Tensor] | None = None
    patch: Patch | None = None
    expected: str = ""  # of mistakes in code: kind, and a pattern over the sentence that names the first difference
    left: Patch | None = None  # of the other run, where it is not the plain one


@dataclass(frozen=True)
class Clean:
    """Two right runs, and what differs between them."""

    model: str
    name: str
    patch: Patch | None = None
    level: str = "ops"


# What a wrong kernel does.


def one_percent(x: Tensor) -> Tensor:
    return x * 1.01


def to_bf16(x: Tensor) -> Tensor:
    return x.bfloat16().to(x.dtype)


def one_nan(x: Tensor) -> Tensor:
    x.view(-1)[x.numel() // 2] = float("nan")
    return x


def flipped_bit(x: Tensor) -> Tensor:
    bits = x.view(-1).view(torch.int32)
    bits[bits.numel() // 3] ^= 1 << 26
    return x


def last_row_lost(x: Tensor) -> Tensor:
    x[-1] = 0
    return x


def rolled(x: Tensor) -> Tensor:
    return x.roll(1, -1)


def permuted(x: Tensor) -> Tensor:
    return x.flatten().view(*reversed(x.shape)).permute(*reversed(range(x.dim()))).contiguous().view(x.shape)


def stale(x: Tensor) -> Tensor:
    return torch.zeros_like(x)


def last_column_twice(x: Tensor) -> Tensor:
    x[..., -2] = x[..., -1]
    return x


def clamped(x: Tensor) -> Tensor:
    return x.clamp(-0.05, 0.05)


def smallest_bits_lost(x: Tensor) -> Tensor:
    bits = x.contiguous().view(torch.int32)
    return (bits & ~0x3FF).view(torch.float32)


def one_row_scaled(x: Tensor) -> Tensor:
    x.view(-1)[: x.shape[-1]] *= 0.97
    return x


# Mistakes in code


def setting(path: str, name: str, value: Any) -> Patch:
    return lambda run: setattr(run.model.get_submodule(path), name, value)


def transposed(path: str) -> Patch:
    def patch(run: Run) -> None:
        weight: Any = run.model.get_submodule(path).weight
        weight.data = weight.data.flatten().view(*reversed(weight.shape)).t().contiguous()

    return patch


def group(**values: Any) -> Patch:
    return lambda run: run.optimizer.param_groups[0].update(values)


def batch(name: str, change: Callable[[Tensor], Tensor]) -> Patch:
    return lambda run: run.batch.update({name: change(run.batch[name])})


def run_value(**values: Any) -> Patch:
    return lambda run: run.__dict__.update(values)


def rotary_off_by_one(run: Run) -> None:
    run.batch["position_ids"] = torch.arange(1, 13).expand(2, 12)


def norm_in_bf16(path: str) -> Patch:
    def patch(run: Run) -> None:
        module = run.model.get_submodule(path)
        forward = module.forward
        module.forward = lambda x: forward(x.bfloat16()).float()

    return patch


def behind_torch(path: str) -> Patch:
    """A write that no operator makes, as by a copy on another stream that nobody waits for."""

    def patch(run: Run) -> None:
        def hook(module: nn.Module, inputs: Any) -> None:
            inputs[0].detach().numpy()[..., 0] = 0.0

        run.model.get_submodule(path).register_forward_pre_hook(hook)

    return patch


def frozen(path: str) -> Patch:
    return lambda run: run.model.get_submodule(path).requires_grad_(False) and None


def in_eval_mode(path: str) -> Patch:
    return lambda run: run.model.get_submodule(path).eval() and None


def attention_not_scaled(run: Run) -> None:
    run.model.bert.encoder.layer[1].attention.self.scaling = 1.0


def summed_loss(run: Run) -> None:
    forward = functional.binary_cross_entropy_with_logits
    run.model.forward = lambda **batch: _with(forward, run, batch)


def _with(forward: Any, run: Run, batch: Any) -> Any:
    functional.binary_cross_entropy_with_logits = lambda *a: forward(*a, reduction="sum")
    try:
        return type(run.model).forward(run.model, **batch)
    finally:
        functional.binary_cross_entropy_with_logits = forward


def without_label_smoothing(run: Run) -> None:
    model = run.model

    def forward(pixels: Tensor, labels: Tensor) -> Tensor:
        tokens = model.patch(pixels).flatten(2).transpose(1, 2) + model.positions
        return functional.cross_entropy(model.head(model.encoder(tokens).mean(1)), labels)

    model.forward = forward


# What two right runs may differ in


def threads(run: Run) -> Any:
    @contextmanager
    def two() -> Iterator[None]:
        torch.set_num_threads(2)
        yield
        torch.set_num_threads(1)

    return two()


def foreach(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-2, foreach=True)


def fused(run: Run) -> None:
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-2, fused=True)


def channels_last(run: Run) -> None:
    run.model.to(memory_format=torch.channels_last)
    run.batch["pixels"] = run.batch["pixels"].contiguous(memory_format=torch.channels_last)


def checkpointing(run: Run) -> None:
    run.model.gradient_checkpointing_enable({"use_reentrant": False})


def sdpa(run: Run) -> None:
    run.model.set_attn_implementation("sdpa")


def ddp(run: Run) -> None:
    if not torch.distributed.is_initialized():
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
    run.model = nn.parallel.DistributedDataParallel(run.model)


def contiguous_batch(run: Run) -> None:
    run.batch = {name: value.t().contiguous().t() if value.dim() == 2 else value for name, value in run.batch.items()}


def sgd(**kind: bool) -> Patch:
    def patch(run: Run) -> None:
        run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.05, momentum=0.9, nesterov=True, **kind)

    return patch
