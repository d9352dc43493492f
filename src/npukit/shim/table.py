"""Every place in torch that is patched when CUDA means another device, with its replacements for NPU and CPU.

transfer_to_npu, torch_npu's own, has been before: an empty NPU column is its work or needs none. An empty CPU column
is a function that `cpu.OnCpu` sees, or one that answers without CUDA.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

import torch

from npukit.shim import cpu, npu
from npukit.shim.cpu import answer, stand_in

Make = Callable[[Any], Any]  # makes the new object from the old one
PROPERTIES = SimpleNamespace(name="CPU", total_memory=1, major=8, minor=0, multi_processor_count=1)


@dataclass(frozen=True)
class ShimRow:
    place: str
    npu: Make | None = None
    cpu: Make | None = None


TABLE = (
    ShimRow("torch.Tensor.cuda", npu.tensor_cuda),
    ShimRow("torch.Tensor.type", npu.tensor_type),
    ShimRow("torch.Tensor.record_stream", cpu=answer(None)),
    ShimRow("torch.nn.Module.cuda", npu.module_cuda),
    ShimRow("torch.nn.Module.to", cpu=cpu.module_to),
    ShimRow("torch.set_default_tensor_type", npu.default_tensor_type, cpu.takes_device),
    ShimRow("torch.set_default_device", cpu=cpu.takes_device),
    ShimRow("torch.asarray", npu.takes_device),
    ShimRow("torch.load", cpu=cpu.takes_device),
    ShimRow("torch.Generator", cpu=cpu.generator),
    ShimRow("torch.random.fork_rng", cpu=cpu.fork_rng),
    ShimRow("torch.autocast.__init__", cpu=cpu.autocast),
    ShimRow("torch.is_autocast_enabled", cpu=cpu.asks_autocast),
    ShimRow("torch.get_autocast_dtype", cpu=cpu.autocast_dtype),
    ShimRow("torch.get_autocast_gpu_dtype", cpu=lambda _: lambda: torch.get_autocast_dtype("cuda")),
    ShimRow("torch.amp.GradScaler.__init__", npu.takes_device),
    ShimRow("torch.nn.DataParallel.__init__", npu.one_device, cpu.data_parallel),
    ShimRow("torch.nn.parallel.DistributedDataParallel.__init__", cpu=cpu.distributed_data_parallel),
    ShimRow("torch.distributed.fsdp.FullyShardedDataParallel.__init__", cpu=cpu.fully_sharded),
    ShimRow("torch.distributed.init_process_group", npu.init_process_group, cpu.makes_group),
    ShimRow("torch.distributed.new_group", cpu=cpu.makes_group),
    ShimRow("torch.distributed.init_device_mesh", cpu=cpu.takes_device),
    ShimRow("torch.distributed.device_mesh.init_device_mesh", cpu=cpu.takes_device),
    ShimRow("torch.distributed.get_backend", npu.get_backend),
    # A torch built for CUDA would use it here, although the CPU stands in.
    ShimRow("torch.accelerator.current_accelerator", cpu=answer(None)),
    ShimRow("torch.cuda.is_available", npu.counted, answer(True)),
    ShimRow("torch.cuda.device_count", npu.counted, answer(1)),
    ShimRow("torch.cuda.current_device", npu.counted, answer(0)),
    ShimRow("torch.cuda.set_device", npu.counted, answer(None)),
    ShimRow("torch.cuda.synchronize", npu.counted, answer(None)),
    ShimRow("torch.cuda.empty_cache", npu.counted),
    ShimRow("torch.cuda.manual_seed", npu.counted),
    ShimRow("torch.cuda.manual_seed_all", npu.counted),
    ShimRow("torch.cuda.get_device_name", npu.counted, answer("CPU in place of CUDA")),
    ShimRow("torch.cuda.get_device_properties", npu.counted, answer(PROPERTIES)),
    ShimRow("torch.cuda.get_device_capability", npu.capability, answer((8, 0))),
    ShimRow("torch.cuda.is_bf16_supported", cpu=answer(True)),
    ShimRow("torch.cuda.mem_get_info", npu.counted, answer((0, 0))),
    ShimRow("torch.cuda.memory_allocated", npu.counted),
    ShimRow("torch.cuda.max_memory_allocated", npu.counted),
    ShimRow("torch.cuda.memory_summary", cpu=answer("")),
    ShimRow("torch.cuda.reset_peak_memory_stats", npu.counted, answer(None)),
    ShimRow("torch.cuda.reset_accumulated_memory_stats", cpu=answer(None)),
    ShimRow("torch.cuda.reset_max_memory_allocated", cpu=answer(None)),
    ShimRow("torch.cuda.reset_max_memory_cached", cpu=answer(None)),
    ShimRow("torch.cuda.init", cpu=answer(None)),
    ShimRow("torch.cuda.ipc_collect", cpu=answer(None)),
    ShimRow("torch.cuda._lazy_init", cpu=answer(None)),
    ShimRow("torch.cuda._lazy_call", cpu=lambda _: lambda function, **__: function()),
    # Both runs of verify draw from the CPU's generator, so the state of a device's generator has no effect.
    ShimRow("torch.cuda.default_generators", cpu=lambda _: (torch.Generator(),) * torch.cuda.device_count()),
    ShimRow("torch.cuda.get_rng_state", cpu=lambda _: lambda *__, **___: torch.get_rng_state()),
    ShimRow("torch.cuda.random.get_rng_state", cpu=lambda _: lambda *__, **___: torch.get_rng_state()),
    ShimRow("torch.cuda.get_rng_state_all", cpu=lambda _: lambda: [torch.get_rng_state()] * torch.cuda.device_count()),
    ShimRow("torch.cuda.set_rng_state", cpu=answer(None)),
    ShimRow("torch.cuda.set_rng_state_all", cpu=answer(None)),
    *(
        ShimRow(f"torch.cuda.{name}", cpu=stand_in(cpu.Nothing))
        for name in ("Stream", "Event", "stream", "current_stream", "default_stream", "device")
    ),
    ShimRow("torch.cuda.nvtx", npu.nvtx),
    ShimRow("torch.cuda.comm", npu.comm),
    ShimRow("torch.cuda.DoubleTensor", npu.double, stand_in(torch.DoubleTensor)),
    *(
        ShimRow(f"torch.cuda.{kind}Tensor", cpu=stand_in(getattr(torch, f"{kind}Tensor")))
        for kind in ("BFloat16", "Bool", "Byte", "Char", "Float", "Half", "Int", "Long", "Short")
    ),
)


def change(device: Literal["npu", "cpu"]) -> None:
    """Patch torch in this process; what is of a later torch than this one stays away."""
    for row in TABLE:
        owner, name = owner_of(row.place)
        if owner is not None and (make := getattr(row, device)):
            setattr(owner, name, make(getattr(owner, name, None)))


def owner_of(place: str) -> tuple[Any, str]:
    """The module or class that has what is replaced, None where this torch has none, and the name in it.

    >>> owner_of("torch.cuda.is_available")[1]
    'is_available'
    """
    owner, _, name = place.rpartition(".")
    try:
        return pkgutil.resolve_name(owner), name
    except (ImportError, AttributeError):
        return None, name
