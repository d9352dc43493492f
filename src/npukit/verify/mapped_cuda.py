"""Let code that insists on CUDA run on the CPU: wherever torch is told "cuda", the CPU is meant.

Only what training scripts use: devices, autocast, process groups, memory figures (which are 0), streams and events
(which do nothing). `tensor.is_cuda` and `tensor.device` keep telling the truth.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

_CUDA = re.compile(r"cuda(:\d+)?")
# What autocast on CUDA and NPUs computes in float32, and on the CPU does not.
# fmt: off
_IN_FLOAT32 = (
    "binary_cross_entropy_with_logits", "cosine_embedding_loss", "cosine_similarity", "cross_entropy",
    "cumprod", "cumsum", "exp", "expm1", "group_norm", "kl_div", "l1_loss", "layer_norm", "log", "log10",
    "log1p", "log2", "log_softmax", "margin_ranking_loss", "mse_loss", "nll_loss", "norm", "normalize", "pow",
    "prod", "reciprocal", "rsqrt", "smooth_l1_loss", "softmax", "softplus", "sum", "triplet_margin_loss",
)
# fmt: on
_OTHER_NAMES = {"nccl": "gloo", "cpu:gloo,cuda:nccl": "gloo", "cuda:nccl,cpu:gloo": "gloo"}


def apply(devices: int) -> None:
    """Map CUDA to the CPU for the rest of this process; it sees so many CUDA devices."""
    _answer_for_cuda(devices)
    _map_arguments()
    _OnCpu().__enter__()  # type: ignore[no-untyped-call]


def on_cpu(value: Any) -> Any:
    """
    >>> on_cpu("cuda:1"), on_cpu(torch.device("cuda", 1)), on_cpu("cuda.txt")
    ('cpu', device(type='cpu'), 'cuda.txt')
    """
    if isinstance(value, str):
        return "cpu" if _CUDA.fullmatch(value) else _OTHER_NAMES.get(value, value.replace("torch.cuda.", "torch."))
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, dict):
        return {on_cpu(key): on_cpu(each) for key, each in value.items()}
    return value


class _OnCpu(TorchFunctionMode):
    in_float32 = frozenset(
        getattr(owner, name)
        for owner in (torch, torch.Tensor, torch.nn.functional)
        for name in _IN_FLOAT32
        if hasattr(owner, name)
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        if func in (torch.Tensor.cuda, torch.Tensor.pin_memory):
            return args[0]
        if func is torch.device:
            kind = kwargs.get("type", args[0] if args else "")
            if type(kind) is int or on_cpu(kind) == "cpu":
                return torch.device("cpu")  # not cpu:0, which no tensor is on
        if torch.is_autocast_enabled("cpu") and func in self.in_float32:
            args = tuple(map(_float32, args))
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        return func(*(on_cpu(value) if isinstance(value, (str, torch.device)) else value for value in args), **kwargs)


def _float32(value: Any) -> Any:
    halves = (torch.float16, torch.bfloat16)
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in halves else value


class _Nothing(contextlib.nullcontext):  # type: ignore[type-arg]
    """A stream or an event where there is nothing to wait for."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(self)

    def elapsed_time(self, _: Any) -> float:
        return 0.0

    def query(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _answer_for_cuda(devices: int) -> None:
    cuda: Any = torch.cuda
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": devices,
        "current_device": 0,
        "get_device_name": "CPU in place of CUDA",
        "get_device_capability": (8, 0),
        "is_bf16_supported": True,
        "set_device": None,
        "synchronize": None,
        "init": None,
        "ipc_collect": None,
        "mem_get_info": (0, 0),
        "memory_summary": "",
        "get_device_properties": SimpleNamespace(name="CPU", total_memory=1, major=8, minor=0, multi_processor_count=1),
        "set_rng_state": None,
        "set_rng_state_all": None,
    }
    answers |= {name: None for name in dir(cuda) if name.startswith("reset_")}
    for name, answer in answers.items():
        setattr(cuda, name, lambda *_, answer=answer, **__: answer)
    cuda.get_rng_state = lambda *_: torch.get_rng_state()
    cuda.get_rng_state_all = lambda: [torch.get_rng_state()] * devices
    for name in ("Stream", "Event", "stream", "current_stream", "default_stream", "device"):
        setattr(cuda, name, _Nothing)
    for name in [name for name in dir(cuda) if name.endswith("Tensor") and hasattr(torch, name)]:
        setattr(cuda, name, getattr(torch, name))


def _map_arguments() -> None:
    """What is not a torch function, and so does not pass through the mode above."""
    for owner, name in (
        (torch, "load"),
        (torch, "set_default_device"),
        (torch, "set_default_tensor_type"),
        (torch.distributed, "init_process_group"),
        (torch.distributed, "new_group"),
        (torch.distributed, "init_device_mesh"),
        (torch.distributed.device_mesh, "init_device_mesh"),
    ):
        setattr(owner, name, _mapped(getattr(owner, name)))
    torch.nn.Module.to = _module_to(torch.nn.Module.to)  # type: ignore[method-assign]
    fork_rng = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=(), enabled=True, **_: fork_rng((), enabled)
    torch.Tensor.record_stream = lambda *_: None  # type: ignore[method-assign]
    # Where there is no device to spread over, DataParallel only wraps.
    data_parallel: Any = sys.modules["torch.nn.parallel.data_parallel"]
    data_parallel._get_available_device_type = lambda: None
    autocast: Any = torch.autocast
    begin = autocast.__init__

    def autocast_on_cpu(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kw: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        begin(self, device_type, dtype, *args, **kw)

    autocast.__init__ = autocast_on_cpu
    wrap = DistributedDataParallel.__init__

    def ddp_on_cpu(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        wrap(self, module, None, None, *args, **kw)

    DistributedDataParallel.__init__ = ddp_on_cpu  # type: ignore[method-assign]
    shard = FullyShardedDataParallel.__init__

    def fsdp_on_cpu(self: Any, *args: Any, **kw: Any) -> None:
        # It takes the CPU only where it is told to, and synchronises cards only: ranks have the same seed here.
        shard(self, *args, **{**kw, "device_id": torch.device("cpu"), "sync_module_states": False})

    FullyShardedDataParallel.__init__ = fsdp_on_cpu  # type: ignore[method-assign]

    class Generator(torch.Generator):
        def __new__(cls, device: Any = "cpu") -> Generator:
            return super().__new__(cls, on_cpu(device))  # type: ignore[call-arg]

    torch.Generator = Generator  # type: ignore[misc]


def _mapped(function: Any) -> Any:
    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        kwargs = {name: on_cpu(value) for name, value in kwargs.items() if name != "device_id"}
        return function(*map(on_cpu, args), **kwargs)

    return mapped


def _module_to(function: Any) -> Any:
    @functools.wraps(function)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if type(value) is int else value for value in args)
        return function(self, *map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})

    return to
