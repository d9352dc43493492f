"""Every place in torch that is changed where CUDA means another device, and what it becomes on an NPU and on the CPU.

transfer_to_npu, torch_npu's own, has been before: an empty NPU column is its work or needs none. An empty CPU column
is a function that `cpu.OnCpu` sees, or one that answers without CUDA.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from npukit.shim import cpu, npu
from npukit.shim.cpu import answer, stand_in

Make = Callable[[Any], Any]  # of the old thing the new one
PROPERTIES = SimpleNamespace(name="CPU", total_memory=1, major=8, minor=0, multi_processor_count=1)


@dataclass(frozen=True)
class Row:
    place: str
    npu: Make | None = None
    cpu: Make | None = None


TABLE = (
    Row("torch.Tensor.cuda", npu.tensor_cuda),
    Row("torch.Tensor.type", npu.tensor_type),
    Row("torch.Tensor.record_stream", cpu=answer(None)),
    Row("torch.nn.Module.cuda", npu.module_cuda),
    Row("torch.nn.Module.to", cpu=cpu.module_to),
    Row("torch.set_default_tensor_type", npu.default_tensor_type, cpu.takes_device),
    Row("torch.set_default_device", cpu=cpu.takes_device),
    Row("torch.asarray", npu.takes_device),
    Row("torch.load", cpu=cpu.takes_device),
    Row("torch.Generator", cpu=cpu.generator),
    Row("torch.random.fork_rng", cpu=cpu.fork_rng),
    Row("torch.autocast.__init__", cpu=cpu.autocast),
    Row("torch.is_autocast_enabled", cpu=cpu.asks_autocast),
    Row("torch.get_autocast_dtype", cpu=cpu.autocast_dtype),
    Row("torch.get_autocast_gpu_dtype", cpu=lambda _: lambda: torch.get_autocast_dtype("cuda")),
    Row("torch.amp.GradScaler.__init__", npu.takes_device),
    Row("torch.nn.DataParallel.__init__", npu.one_device, cpu.data_parallel),
    Row("torch.nn.parallel.DistributedDataParallel.__init__", cpu=cpu.distributed_data_parallel),
    Row("torch.distributed.fsdp.FullyShardedDataParallel.__init__", cpu=cpu.fully_sharded),
    Row("torch.distributed.init_process_group", npu.init_process_group, cpu.makes_group),
    Row("torch.distributed.new_group", cpu=cpu.makes_group),
    Row("torch.distributed.init_device_mesh", cpu=cpu.takes_device),
    Row("torch.distributed.device_mesh.init_device_mesh", cpu=cpu.takes_device),
    Row("torch.distributed.get_backend", npu.get_backend),
    Row("torch.cuda.is_available", npu.counted, answer(True)),
    Row("torch.cuda.device_count", npu.counted, answer(1)),
    Row("torch.cuda.current_device", npu.counted, answer(0)),
    Row("torch.cuda.set_device", npu.counted, answer(None)),
    Row("torch.cuda.synchronize", npu.counted, answer(None)),
    Row("torch.cuda.empty_cache", npu.counted),
    Row("torch.cuda.manual_seed", npu.counted),
    Row("torch.cuda.manual_seed_all", npu.counted),
    Row("torch.cuda.get_device_name", npu.counted, answer("CPU in place of CUDA")),
    Row("torch.cuda.get_device_properties", npu.counted, answer(PROPERTIES)),
    Row("torch.cuda.get_device_capability", npu.capability, answer((8, 0))),
    Row("torch.cuda.is_bf16_supported", cpu=answer(True)),
    Row("torch.cuda.mem_get_info", npu.counted, answer((0, 0))),
    Row("torch.cuda.memory_allocated", npu.counted),
    Row("torch.cuda.max_memory_allocated", npu.counted),
    Row("torch.cuda.memory_summary", cpu=answer("")),
    Row("torch.cuda.reset_peak_memory_stats", npu.counted, answer(None)),
    Row("torch.cuda.reset_accumulated_memory_stats", cpu=answer(None)),
    Row("torch.cuda.reset_max_memory_allocated", cpu=answer(None)),
    Row("torch.cuda.reset_max_memory_cached", cpu=answer(None)),
    Row("torch.cuda.init", cpu=answer(None)),
    Row("torch.cuda.ipc_collect", cpu=answer(None)),
    Row("torch.cuda._lazy_init", cpu=answer(None)),
    Row("torch.cuda._lazy_call", cpu=lambda _: lambda function, **__: function()),
    # Both runs of verify draw from the CPU's generator, so that the states of a device's change nothing.
    Row("torch.cuda.default_generators", cpu=lambda _: (torch.Generator(),) * torch.cuda.device_count()),
    Row("torch.cuda.get_rng_state", cpu=lambda _: lambda *__, **___: torch.get_rng_state()),
    Row("torch.cuda.random.get_rng_state", cpu=lambda _: lambda *__, **___: torch.get_rng_state()),
    Row("torch.cuda.get_rng_state_all", cpu=lambda _: lambda: [torch.get_rng_state()] * torch.cuda.device_count()),
    Row("torch.cuda.set_rng_state", cpu=answer(None)),
    Row("torch.cuda.set_rng_state_all", cpu=answer(None)),
    *(
        Row(f"torch.cuda.{name}", cpu=stand_in(cpu.Nothing))
        for name in ("Stream", "Event", "stream", "current_stream", "default_stream", "device")
    ),
    Row("torch.cuda.nvtx", npu.nvtx),
    Row("torch.cuda.comm", npu.comm),
    Row("torch.cuda.DoubleTensor", npu.double, stand_in(torch.DoubleTensor)),
    *(
        Row(f"torch.cuda.{kind}Tensor", cpu=stand_in(getattr(torch, f"{kind}Tensor")))
        for kind in ("BFloat16", "Bool", "Byte", "Char", "Float", "Half", "Int", "Long", "Short")
    ),
)


def change(device: Literal["npu", "cpu"]) -> None:
    """Change torch in this process."""
    for row in TABLE:
        if make := getattr(row, device):
            owner, name = _owner(row.place)
            setattr(owner, name, make(getattr(owner, name, None)))


def _owner(place: str) -> tuple[Any, str]:
    first, *path, name = place.split(".")
    return functools.reduce(getattr, path, importlib.import_module(first)), name
