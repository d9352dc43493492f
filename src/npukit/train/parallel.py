"""The model on its devices: on one, replicated on several (DDP) or sharded across them (FSDP2)."""

from __future__ import annotations

import atexit
import os
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, FullyShardedDataParallelPlugin, send_to_device
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.launch.devices import torch_device
from npukit.train.blocks import blocks
from npukit.train.optimizer import Groups, make_optimizer, parameter_groups
from npukit.train.options import TrainOptions
from npukit.train.other_optimizers import is_other, make_other
from npukit.train.precision import autocast, choose_precision, make_scaler
from npukit.train.shards import unsharded, without_hooks_of
from npukit.train.state import (
    copies,
    host_copy,
    load_model_state,
    load_optimizer_state,
    optimizer_state,
    weights,
)

T = TypeVar("T")


class Parallel:
    """The model, its optimizer, and the communication between ranks. Call `prepare` first."""

    module: nn.Module  # the model itself
    model: nn.Module  # its wrapper, which is called
    optimizer: torch.optim.Optimizer

    def __init__(self, options: TrainOptions) -> None:
        self.options = options
        self.accelerator = self._accelerate()
        self.device: torch.device = self.accelerator.device
        self.rank: int = self.accelerator.process_index
        self.world_size: int = self.accelerator.num_processes
        self.is_main = self.rank == 0
        options.check_devices(self.world_size)
        self.sequence = _group_of_row(options.sequence_parallel, self.rank, self.world_size)
        self.precision = choose_precision(options, self.device)
        self.dtype = self.precision.dtype
        self.scaler = make_scaler(options, self.device, self.dtype)

    @property
    def sharded(self) -> bool:
        """Whether each rank has its own shard of the state."""
        return self.options.parallel != "ddp"

    @property
    def reader(self) -> int:
        """Which share of the rows this rank reads. Ranks that share the tokens of a row read the same."""
        return self.rank // self.options.sequence_parallel

    @property
    def readers(self) -> int:
        """How many such shares there are."""
        return self.world_size // self.options.sequence_parallel

    def _accelerate(self) -> Accelerator:
        forget_earlier_set_up()
        device = torch_device()
        if self.options.parallel == "ddp":
            # torch_npu's fused optimizers move the gradients, which must not be views into DDP's buckets then.
            views = not abilities(device).torch_npu
            unused = self.options.find_unused_parameters
            handlers = [DistributedDataParallelKwargs(gradient_as_bucket_view=views, find_unused_parameters=unused)]
            return Accelerator(mixed_precision="no", cpu=not abilities(device).own_memory, kwargs_handlers=handlers)
        if not abilities(device).own_memory:
            raise NpukitError("parallel: fsdp2 needs an NPU or a GPU: use ddp on the CPU.")
        pretend_to_be_launched()
        if self.options.offload and not dist.is_initialized():
            # Collectives for shards in host memory.
            torch.accelerator.set_device_index(device.index)
            dist.init_process_group(f"cpu:gloo,{device.type}:{dist.get_default_backend_for_device(device)}")
        self._plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2,
            auto_wrap_policy="transformer_based_wrap",
            cpu_offload=self.options.offload,
            cpu_ram_efficient_loading=False,
        )
        return Accelerator(mixed_precision="no", fsdp_plugin=self._plugin)

    def prepare(self, model: nn.Module, groups: Groups | None) -> None:
        """Put the model on its devices and make its optimizer."""
        self.module = model
        if self.sharded:
            kinds = {type(block).__name__ for block in blocks(model)}
            self._plugin.transformer_cls_names_to_wrap = sorted(kinds)
            # BatchNorm's statistics are in fp32, and so must its weights be; only autocast casts then.
            if self.dtype != torch.float32 and not any(isinstance(part, _BatchNorm) for part in model.modules()):
                self._plugin.mixed_precision_policy = MixedPrecisionPolicy(self.dtype, torch.float32)
        else:
            model.to(self.device)
        # Not bound to a name, which would keep the whole parameters on the device while they are sharded.
        optimizer = self._optimizer(model, groups)
        self.model, prepared = self.accelerator.prepare(model, optimizer)
        self.optimizer = prepared.optimizer

    def _optimizer(self, model: nn.Module, groups: Groups | None) -> torch.optim.Optimizer:
        if self.sharded or not is_other(self.options.optimizer):
            groups = groups or parameter_groups(model, self.options.weight_decay)
            return make_optimizer(groups, self.options, self.device, self.sharded)
        if groups:
            raise NpukitError(f"training.optimizer {self.options.optimizer} makes its own parameter groups.")
        return make_other(model, self.options)

    def move(self, batch: Any) -> Any:
        """Copy a batch to the device, without waiting for it."""
        return send_to_device(batch, self.device, non_blocking=True)

    def autocast(self) -> torch.autocast:
        return autocast(self.device, self.dtype)

    def exchanging(self, gradients: bool) -> AbstractContextManager[Any]:
        """The context of a forward and backward pass; gradients are exchanged only with the last batch of a step."""
        return nullcontext() if gradients else self.accelerator.no_sync(self.model)

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        """A context in which every rank has all weights and computes on its own. Do not train in it."""
        if self.sharded:
            with unsharded(self.module), without_hooks_of("torch.distributed.fsdp", self.module):
                yield
        else:
            yield

    def backward(self, loss: Tensor) -> None:
        scaled: Any = self.scaler.scale(loss) if self.scaler else loss
        scaled.backward()

    @property
    def loss_scale(self) -> Tensor | float:
        """What the gradients of this step are multiplied by, without waiting for the device."""
        scale = self.scaler._get_scale_async() if self.scaler else None
        return 1.0 if scale is None else scale

    def update(self) -> Tensor | float:
        """Clip the gradients, run the optimizer and drop them; returns their norm before clipping."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        if self.options.max_grad_norm:
            norm = nn.utils.clip_grad_norm_(parameters, self.options.max_grad_norm)
        else:
            norm = nn.utils.get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks, without waiting for the device."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def share_buffers(self) -> None:
        """Copy buffers, such as BatchNorm's statistics, from the main rank, whose are saved."""
        if self.world_size > 1:
            for buffer in self.module.buffers():
                dist.broadcast(buffer, 0)

    def gather(self, value: T) -> list[T]:
        """The value of each rank."""
        values: list[Any] = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        self.accelerator.wait_for_everyone()

    def leave(self) -> None:
        """Leave the process group at exit after a good end: otherwise a rank may abort while another is busy."""
        if dist.is_initialized():
            atexit.register(_destroy_process_group)

    def full_state_dict(self, frozen: bool) -> dict[str, Tensor]:
        """On the main rank, copies of all weights or only the trainable ones in host memory. Tied weights stay tied."""
        return copies(weights(self.module, frozen), self._gather)

    def _gather(self, value: Tensor) -> Tensor:
        whole = value.detach()
        whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
        return whole.to("cpu", copy=True) if self.is_main else torch.empty(0)

    def save(self, folder: Path, full: dict[str, Tensor]) -> dict[str, Any]:
        """This rank's state, given a full_state_dict; what it does not contain is written into `folder`."""
        if self.rank > 0 and not self.sharded:
            return {}
        scaler = self.scaler.state_dict() if self.scaler else {}
        trained = weights(self.module, frozen=False)
        model = copies(trained, host_copy) if self.sharded else {name: full[name] for name in trained}
        return {"model": model, "optimizer": optimizer_state(self.optimizer), "scaler": scaler}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore what `save` returned: this rank's if the state is sharded, otherwise the main rank's."""
        load_model_state(self.module, state["model"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        if self.scaler and state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])


def _group_of_row(size: int, rank: int, world_size: int) -> dist.ProcessGroup | None:
    """The group of ranks that share the tokens of a row with this one."""
    if size == 1:
        return None
    groups: list[Any] = [dist.new_group(range(first, first + size)) for first in range(0, world_size, size)]
    return groups[rank // size]  # type: ignore[no-any-return]


def _destroy_process_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def forget_earlier_set_up() -> None:
    """Reset accelerate's state, which is one per process: a second Trainer may need another."""
    AcceleratorState._reset_state(reset_partial_state=True)
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"):
        os.environ.pop(name, None)


def pretend_to_be_launched() -> None:
    """Make a process group of one, because sharding needs a process group."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = str(free.getsockname()[1])
        one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ.update(one, MASTER_ADDR="localhost", MASTER_PORT=port)
