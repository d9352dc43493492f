"""Replacements in torch when CUDA means an NPU. Each function makes the new object from the old one."""

from __future__ import annotations

import functools
import importlib
import os
import types
from collections.abc import Callable
from typing import Any

from npukit.shim.names import BothNames, on_npu
from npukit.shim.replaced import REPLACED

Function = Callable[..., Any]


def takes_device(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        return old(*map(on_npu, arguments), **{name: on_npu(value) for name, value in keywords.items()})

    return new


def tensor_cuda(old: Function) -> Function:
    def cuda(self: Any, device: Any = None, *arguments: Any, **keywords: Any) -> Any:
        REPLACED[".cuda()"] += 1
        return old(self, on_npu(device), *arguments, **keywords)

    return cuda


def module_cuda(old: Function) -> Function:
    import torch

    def cuda(self: Any, device: Any = None) -> Any:
        REPLACED[".cuda()"] += 1
        return old(self, device if device is None or type(device) is int else torch.device(device).index)

    return cuda


def tensor_type(old: Function) -> Function:
    def type(self: Any, dtype: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if dtype is None:
            name = old(self)
            return BothNames(name, name.replace("npu", "cuda")) if name.startswith("torch.npu.") else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            REPLACED['.type("torch.cuda.…")'] += 1
            dtype = dtype.replace("cuda", "npu")
        return old(self, dtype, *arguments, **keywords)

    return type


def default_tensor_type(old: Function) -> Function:
    import torch

    def set_default_tensor_type(kind: Any) -> None:
        name = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"
        if not name.startswith(("torch.cuda.", "torch.npu.")):
            torch.set_default_device("cpu")
            old(kind)
            return
        REPLACED["default tensor type on CUDA"] += 1
        torch.set_default_dtype(torch.empty(0).type("torch." + name.rpartition(".")[2]).dtype)
        torch.set_default_device("npu")

    return set_default_tensor_type


def init_process_group(old: Function) -> Function:
    @functools.wraps(old)
    def new(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if "nccl" in str(backend):
            REPLACED["nccl as a backend"] += 1
        return old(backend, *arguments, **keywords)

    return new


def get_backend(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        backend = old(*arguments, **keywords)
        return BothNames("hccl", "nccl") if backend == "hccl" else backend

    return new


def capability(old: Function) -> Function:
    """The compute capability, which code reads to know about bf16: of the first GPU with it, or the last without."""
    import torch

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        REPLACED["torch.cuda functions, answered by torch.npu"] += 1
        if os.environ.get("TORCH_NPU_DEVICE_CAPABILITY"):
            return old(device)  # type: ignore[no-any-return]
        return (8, 0) if torch.npu.is_bf16_supported() else (7, 0)  # type: ignore[attr-defined]

    return get_device_capability


def counted(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        REPLACED["torch.cuda functions, answered by torch.npu"] += 1
        return old(*arguments, **keywords)

    return new


def one_device(old: Function) -> Function:
    """DataParallel uses several GPUs from threads, which NPUs do not support: one device computes the whole batch."""

    @functools.wraps(old)
    def __init__(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, dim: int = 0) -> None:
        import torch

        REPLACED["DataParallel, on one device (npukit run --devices N with DDP uses several)"] += 1
        torch.nn.Module.__init__(self)
        self.module = module.to("npu")
        self.dim, self.device_ids, self.output_device = dim, [], None
        self.register_forward_pre_hook(_inputs_on_npu, with_kwargs=True)

    return __init__


def _inputs_on_npu(_: Any, arguments: Any, keywords: Any) -> Any:
    import torch

    def move(value: Any) -> Any:
        return value.to("npu") if isinstance(value, torch.Tensor) else value

    return torch.utils._pytree.tree_map(move, (arguments, keywords))


def nvtx(_: Any) -> Any:
    """Ignore marks for NVIDIA's profiler."""
    from contextlib import nullcontext

    return types.SimpleNamespace(
        range=lambda *_, **__: nullcontext(),
        range_push=lambda *_: 0,
        range_pop=lambda: 0,
        range_start=lambda *_: 0,
        range_end=lambda *_: None,
        mark=lambda *_: None,
    )


def comm(_: Any) -> Any:
    return importlib.import_module("torch.nn.parallel.comm")


def double(_: Any) -> Any:
    import torch

    return torch.npu.DoubleTensor  # type: ignore[attr-defined]
