"""ZeRO: DeepSpeed shards the model and the optimizer, on GPUs and NPUs."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import recursively_apply
from torch import Tensor, nn

from npukit.errors import NpukitError
from npukit.launch.abilities import abilities
from npukit.launch.devices import torch_device
from npukit.train.deepspeed_config import deepspeed_config
from npukit.train.optimizer import Groups, make_optimizer, parameter_groups
from npukit.train.options import TrainOptions
from npukit.train.parallel import Parallel, forget_earlier_set_up, pretend_to_be_launched
from npukit.train.shards import without_hooks_of

STATES = "zero"  # the folder of a checkpoint that DeepSpeed writes


def make_parallel(options: TrainOptions) -> Parallel:
    """The Parallel that `options.parallel` names."""
    return Parallel(options) if options.parallel in ("ddp", "fsdp2") else Zero(options)


class Zero(Parallel):
    """DeepSpeed's engine, which clips, scales and steps by itself and writes its own part of a checkpoint."""

    def _accelerate(self) -> Accelerator:
        forget_earlier_set_up()
        pretend_to_be_launched()
        return Accelerator(mixed_precision="no", cpu=not abilities(torch_device()).own_memory)

    def prepare(self, model: nn.Module, groups: Groups | None) -> None:
        self.module = model
        hidden_size = getattr(getattr(model, "config", None), "hidden_size", None)
        config = deepspeed_config(self.options, self.world_size, self.precision.name, hidden_size)
        zero = config.get("zero_optimization", {})
        self._shares_weights = zero.get("stage") == 3
        offloaded = zero.get("offload_optimizer", {}).get("device", "none") != "none"
        groups = groups or parameter_groups(model, self.options.weight_decay)
        # The optimizer updates DeepSpeed's flat shards, which offloading keeps in host memory.
        place = torch.device("cpu") if offloaded else self.device
        optimizer = make_optimizer(groups, self.options, place, sharded=True)
        self.scaler = None  # DeepSpeed has its own
        deepspeed = _import_deepspeed(self.device)
        with redirect_stdout(io.StringIO()):  # of what it compiles it tells with print
            if self._shares_weights:
                self._shard(model, config)
            self._engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        self._engine.register_forward_pre_hook(self._in_its_type, with_kwargs=True)
        self.model = self._engine
        self.optimizer = self._engine.optimizer

    def _shard(self, model: nn.Module, config: dict[str, Any]) -> None:
        """Give each rank its part of one parameter at a time: DeepSpeed would move the whole model to every device."""
        import deepspeed

        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data = parameter.data.to(self.dtype)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = buffer.to(self.device)
        deepspeed.init_distributed()  # from which zero.Init learns how many ranks there are
        offloaded = config["zero_optimization"].get("offload_param", {})
        deepspeed.zero.Init(module=model, config_dict_or_path=config, remote_device=offloaded.get("device"))

    def _in_its_type(self, _engine: nn.Module, args: Any, kwargs: Any) -> Any:
        """DeepSpeed turned the weights into bf16 or fp16; what is fed to them follows."""
        return recursively_apply(lambda tensor: tensor.to(self.dtype), (args, kwargs), test_type=_is_float)

    def exchanging(self, gradients: bool) -> AbstractContextManager[Any]:
        self._engine.set_gradient_accumulation_boundary(gradients)
        return nullcontext()

    @contextmanager
    def whole_weights(self) -> Iterator[None]:
        if self._shares_weights:
            import deepspeed

            gathered = deepspeed.zero.GatheredParameters(list(self.module.parameters()))
            with gathered, without_hooks_of("deepspeed", self.module):
                yield
        else:
            yield

    def backward(self, loss: Tensor) -> None:
        self._engine.backward(loss, scale_wrt_gas=False)

    def update(self) -> Tensor | float:
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return 0.0 if norm is None else norm

    @property
    def loss_scale(self) -> Tensor | float:
        return float(getattr(self.optimizer, "loss_scale", 1.0))

    def _gather(self, value: Tensor) -> Tensor:
        if not self._shares_weights or not isinstance(value, nn.Parameter):
            return super()._gather(value)
        import deepspeed

        with deepspeed.zero.GatheredParameters([value]):
            return super()._gather(value)

    def save(self, folder: Path, full: dict[str, Tensor]) -> dict[str, Any]:
        self._engine.save_checkpoint(str(folder), tag=STATES, save_latest=False, exclude_frozen_parameters=True)
        return {}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        self._engine.load_checkpoint(str(folder), tag=STATES, load_module_strict=False)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _import_deepspeed(device: torch.device) -> Any:
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    try:
        import deepspeed
    except ImportError:
        raise NpukitError("parallel: zero needs DeepSpeed: `pip install deepspeed`, or use parallel: fsdp2.") from None
    deepspeed.utils.logger.setLevel("ERROR")
    return deepspeed
