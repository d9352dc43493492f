"""Replacements in torch when CUDA means the CPU. Each function makes the new object from the old one.

Functions that torch lets a TorchFunctionMode see are not here: `OnCpu` changes their arguments. Memory figures are 0,
streams and events do nothing. `tensor.is_cuda` and `tensor.device` keep telling the truth.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from npukit.shim.names import on_cpu

Function = Callable[..., Any]
# What autocast on CUDA and NPUs computes in float32, and on the CPU does not.
# fmt: off
_IN_FLOAT32 = (
    "acos", "asin", "binary_cross_entropy_with_logits", "cosh", "cosine_embedding_loss", "cosine_similarity",
    "cross_entropy", "cumprod", "cumsum", "dist", "erfinv", "exp", "expm1", "group_norm", "hinge_embedding_loss",
    "huber_loss", "kl_div", "l1_loss", "layer_norm", "log", "log10", "log1p", "log2", "log_softmax", "logsumexp",
    "margin_ranking_loss", "mse_loss", "nll_loss", "norm", "normalize", "pdist", "poisson_nll_loss", "pow", "prod",
    "reciprocal", "renorm", "rsqrt", "sinh", "smooth_l1_loss", "soft_margin_loss", "softmax", "softplus", "sum",
    "tan", "triplet_margin_loss",
)
# fmt: on


_CONVOLUTIONS = frozenset(getattr(torch, f"conv{kind}{size}d") for kind in ("", "_transpose") for size in (1, 2, 3))


class OnCpu(TorchFunctionMode):
    """Makes every torch function use the CPU in place of CUDA, and compute in float32 what autocast on CUDA does."""

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
                return torch.device("cpu")  # not cpu:0, which is no tensor's device
        if func is torch.nn.functional.cross_entropy and _casts_to_float16():
            return _cross_entropy(*args, **kwargs)
        if torch.is_autocast_enabled("cpu") and func in self.in_float32:
            args = tuple(map(_float32, args))
        if type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        if func in _CONVOLUTIONS and args and _computes_in_float16(args[0]):
            return _convolve(func, args, kwargs)
        if func is torch.Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], "cpu", *args[2:])
        return func(*(on_cpu(value) if isinstance(value, (str, torch.device)) else value for value in args), **kwargs)


def _float32(value: Any) -> Any:
    halves = (torch.float16, torch.bfloat16)
    return value.float() if isinstance(value, torch.Tensor) and value.dtype in halves else value


def _casts_to_float16() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") is torch.float16


def _computes_in_float16(value: torch.Tensor) -> bool:
    autocast = torch.is_autocast_enabled("cpu") and value.dtype is not torch.float64
    return (torch.get_autocast_dtype("cpu") if autocast else value.dtype) is torch.float16


def _convolve(func: Function, args: Any, kwargs: Any) -> torch.Tensor:
    """A convolution of float16 with sums in float32, as on CUDA and NPUs: on ARM, the CPU's own sums are float16."""

    def rounded(value: Any) -> Any:
        return value.half().float() if isinstance(value, torch.Tensor) else value

    with torch.autocast("cpu", enabled=False):
        result = func(*map(rounded, args), **{name: rounded(value) for name, value in kwargs.items()})
    return result.half()  # type: ignore[no-any-return]


def _cross_entropy(
    input: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Its parts, as autocast on CUDA and NPUs sees them: log_softmax rounds to float16, and the sum is in float32.

    The CPU's autocast casts the function as a whole. In bfloat16 it stays so: rounded on both sides, losses would
    differ by more than those of equal programs may.
    """
    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    number = torch.nn._reduction.get_enum(reduction)
    whole = torch.ops.aten.cross_entropy_loss.default
    return whole.decompose(input, target, weight, number, ignore_index, label_smoothing)  # type: ignore[no-any-return]


class Nothing(contextlib.nullcontext):  # type: ignore[type-arg]
    """A stream or an event that does nothing."""

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


def answer(value: Any) -> Callable[[Any], Function]:
    """A function that always returns this."""
    return lambda _: lambda *__, **___: value


def stand_in(thing: Any) -> Callable[[Any], Any]:
    """A replacement that ignores the old object."""
    return lambda _: thing


def takes_device(function: Function) -> Function:
    @functools.wraps(function)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        kwargs = {name: on_cpu(value) for name, value in kwargs.items() if name != "device_id"}
        return function(*map(on_cpu, args), **kwargs)

    return mapped


_groups: list[Any] = []


def makes_group(function: Function) -> Function:
    """Gloo's groups stay until the process ends.

    One that goes right after its last collective may hang: it waits for a thread of its own, which wants the lock of
    the interpreter to free a tensor, and holds that lock. NCCL's, for which it stands here, do not.
    """
    mapped = takes_device(function)

    @functools.wraps(function)
    def kept(*args: Any, **kwargs: Any) -> Any:
        made = mapped(*args, **kwargs)
        _groups.append(made or torch.distributed.group.WORLD)
        return made

    return kept


def module_to(function: Function) -> Function:
    @functools.wraps(function)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if type(value) is int else value for value in args)
        return function(self, *map(on_cpu, args), **{name: on_cpu(value) for name, value in kwargs.items()})

    return to


def fork_rng(old: Function) -> Function:
    return lambda devices=(), enabled=True, **_: old((), enabled)


def autocast(old: Function) -> Function:
    def __init__(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kw: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        old(self, device_type, dtype, *args, **kw)

    return __init__


def asks_autocast(old: Function) -> Function:
    return lambda device_type="cuda": old("cpu" if device_type == "cuda" else device_type)


def autocast_dtype(old: Function) -> Function:
    """The dtype that autocast uses now, or CUDA's default if it is off, which differs from the CPU's."""

    def get(device_type: str = "cuda") -> torch.dtype:
        on_cpu_now = device_type == "cuda" and torch.is_autocast_enabled("cpu")
        return old("cpu" if on_cpu_now else device_type)  # type: ignore[no-any-return]

    return get


def data_parallel(old: Function) -> Function:
    """DataParallel on one device, which only wraps the module."""
    module: Any = sys.modules["torch.nn.parallel.data_parallel"]
    module._get_available_device_type = lambda: None
    return old


def distributed_data_parallel(old: Function) -> Function:
    def __init__(
        self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any
    ) -> None:
        old(self, module, None, None, *args, **kw)

    return __init__


def fully_sharded(old: Function) -> Function:
    """It takes the CPU only where it is told to, and synchronises cards only: ranks have the same seed here."""

    def __init__(self: Any, *args: Any, **kw: Any) -> None:
        old(self, *args, **{**kw, "device_id": torch.device("cpu"), "sync_module_states": False})

    return __init__


def generator(old: Any) -> Any:
    class Generator(old):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            return super().__new__(cls, on_cpu(device))

    return Generator
