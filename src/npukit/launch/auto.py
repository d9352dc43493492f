"""Run CUDA code on an NPU without editing it: torch_npu's own transfer_to_npu, and what that leaves out or gets wrong.

transfer_to_npu puts torch.npu in the place of torch.cuda and "npu" in the place of "cuda" where torch takes a device.
On top of it: `TABLE` names each further place in torch that is changed and by what; own_code.py makes devices answer
to CUDA's name in the user's own modules; the environment and apex are seen to here. Every replacement is counted, and
the counts are told when the process ends.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import re
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from npukit.launch import own_code
from npukit.launch.script import compile_script, run_first_in_spawned

REPLACED: Counter[str] = Counter()
DEVICE = re.compile(r"cuda(:\d+)?")
DEVICES = re.compile(r"\d+(,\d+)*")
VISIBLE, VISIBLE_ON_NPU = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"

Function = Callable[..., Any]


class BothNames(str):
    """An NPU's name that is equal to CUDA's as well.

    >>> BothNames("npu", "cuda") == "cuda", BothNames("npu", "cuda") == "npu"
    (True, True)
    """

    cuda: str

    def __new__(cls, npu: str, cuda: str) -> BothNames:
        self = super().__new__(cls, npu)
        self.cuda = cuda
        return self

    def __eq__(self, other: object) -> bool:
        if other == self.cuda:
            REPLACED[f'asked for "{self.cuda}", answered yes'] += 1
            return True
        return str.__eq__(self, other) is True

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.cuda)  # tables in CUDA code have CUDA's name for a key

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return part in str(self) or part in self.cuda

    def startswith(self, prefix: Any, *bounds: Any) -> bool:
        return str(self).startswith(prefix, *bounds) or self.cuda.startswith(prefix, *bounds)

    def __str__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def both_names(kind: Any) -> Any:
    """A device's type as the user's code may ask for it."""
    return BothNames("npu", "cuda") if type(kind) is str and kind in ("npu", "cuda") else kind


def on_npu(value: Any) -> Any:
    """The NPU that a CUDA device stands for; anything else as it is. A file name that contains "cuda" is no device.

    >>> on_npu("cuda:1"), on_npu("model_cuda.pt"), on_npu({"cuda:0": "cuda:1"})
    ('npu:1', 'model_cuda.pt', {'cuda:0': 'npu:1', 'npu:0': 'npu:1'})
    """
    import torch

    if type(value) is str and DEVICE.fullmatch(value):
        REPLACED['"cuda" as a device'] += 1
        return value.replace("cuda", "npu")
    if isinstance(value, torch.device) and value.type == "cuda":
        REPLACED['"cuda" as a device'] += 1
        return torch.device("npu", value.index) if value.index is not None else torch.device("npu")
    if type(value) is dict and any(isinstance(key, str) and DEVICE.fullmatch(key) for key in value):
        # A map of devices for torch.load: storages saved from a GPU have CUDA's name, those saved from an NPU not.
        places = {key: on_npu(place) for key, place in value.items()}
        return places | {on_npu(key): place for key, place in places.items()}
    return value


def _arguments_on_npu(arguments: list[Any], replace_int: bool | None) -> list[Any]:
    """Stands in for transfer_to_npu's function of the same use, which takes any text with "cuda" in it for a device."""
    for place, value in enumerate(arguments):
        is_index = replace_int and type(value) is int
        arguments[place] = f"npu:{value}" if is_index else on_npu(value)
    return arguments


def _keyword_on_npu(keywords: dict[str, Any], name: str, value: Any) -> None:
    keywords[name] = f"npu:{value}" if type(value) is int else on_npu(value)


# Each of these makes a new function of an old one.


def _takes_device(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        return old(*map(on_npu, arguments), **{name: on_npu(value) for name, value in keywords.items()})

    return new


def _tensor_cuda(old: Function) -> Function:
    def cuda(self: Any, device: Any = None, *arguments: Any, **keywords: Any) -> Any:
        REPLACED[".cuda()"] += 1
        return old(self, on_npu(device), *arguments, **keywords)

    return cuda


def _module_cuda(old: Function) -> Function:
    import torch

    def cuda(self: Any, device: Any = None) -> Any:
        REPLACED[".cuda()"] += 1
        return old(self, device if device is None or type(device) is int else torch.device(device).index)

    return cuda


def _tensor_type(old: Function) -> Function:
    def type(self: Any, dtype: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if dtype is None:
            name = old(self)
            return BothNames(name, name.replace("npu", "cuda")) if name.startswith("torch.npu.") else name
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            REPLACED['.type("torch.cuda.…")'] += 1
            dtype = dtype.replace("cuda", "npu")
        return old(self, dtype, *arguments, **keywords)

    return type


def _default_tensor_type(old: Function) -> Function:
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


def _init_process_group(old: Function) -> Function:
    @functools.wraps(old)
    def new(backend: Any = None, *arguments: Any, **keywords: Any) -> Any:
        if "nccl" in str(backend):
            REPLACED["nccl as a backend"] += 1
        return old(backend, *arguments, **keywords)

    return new


def _get_backend(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        backend = old(*arguments, **keywords)
        return BothNames("hccl", "nccl") if backend == "hccl" else backend

    return new


def _capability(old: Function) -> Function:
    """Asked for in order to know whether there is bf16: answer as a GPU with it or the last one without."""
    import torch

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        REPLACED["torch.cuda functions, answered by torch.npu"] += 1
        if os.environ.get("TORCH_NPU_DEVICE_CAPABILITY"):
            return old(device)  # type: ignore[no-any-return]
        return (8, 0) if torch.npu.is_bf16_supported() else (7, 0)  # type: ignore[attr-defined]

    return get_device_capability


def _counted(old: Function) -> Function:
    @functools.wraps(old)
    def new(*arguments: Any, **keywords: Any) -> Any:
        REPLACED["torch.cuda functions, answered by torch.npu"] += 1
        return old(*arguments, **keywords)

    return new


def _one_device(old: Function) -> Function:
    """DataParallel drives several GPUs from threads, which NPUs do not know: one device computes the whole batch."""

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


def _nvtx(_: Any) -> Any:
    """Marks for NVIDIA's profiler: nobody reads them here."""
    from contextlib import nullcontext

    return types.SimpleNamespace(
        range=lambda *_, **__: nullcontext(),
        range_push=lambda *_: 0,
        range_pop=lambda: 0,
        range_start=lambda *_: 0,
        range_end=lambda *_: None,
        mark=lambda *_: None,
    )


def _comm(_: Any) -> Any:
    return importlib.import_module("torch.nn.parallel.comm")


def _double(_: Any) -> Any:
    import torch

    return torch.npu.DoubleTensor  # type: ignore[attr-defined]


ASKED = (
    "is_available device_count current_device set_device synchronize empty_cache manual_seed manual_seed_all "
    "get_device_name get_device_properties mem_get_info memory_allocated max_memory_allocated reset_peak_memory_stats"
)
TABLE: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("torch.Tensor.cuda", _tensor_cuda),
    ("torch.nn.Module.cuda", _module_cuda),
    ("torch.Tensor.type", _tensor_type),
    ("torch.set_default_tensor_type", _default_tensor_type),
    ("torch.asarray", _takes_device),
    ("torch.amp.GradScaler.__init__", _takes_device),
    ("torch.nn.DataParallel.__init__", _one_device),
    ("torch.distributed.init_process_group", _init_process_group),
    ("torch.distributed.get_backend", _get_backend),
    ("torch.cuda.get_device_capability", _capability),
    ("torch.cuda.nvtx", _nvtx),
    ("torch.cuda.comm", _comm),
    ("torch.cuda.DoubleTensor", _double),
    *((f"torch.cuda.{name}", _counted) for name in ASKED.split()),
)


def apply(folder: str, tell: bool = True) -> None:
    """Change this process, and the processes that it spawns; `folder` holds the user's own modules."""
    _see_to_environment()
    with warnings.catch_warnings(record=True):
        transfer: Any = importlib.import_module("torch_npu.contrib.transfer_to_npu")
    import torch

    undynamic: Any = torch._dynamo.disable
    transfer._replace_cuda_to_npu_in_list = undynamic(_arguments_on_npu)
    transfer._replace_cuda_to_npu_in_kwargs = undynamic(_keyword_on_npu)
    for place, make in TABLE:
        owner, name = _owner(place)
        setattr(owner, name, make(getattr(owner, name, None)))
    torch.serialization.register_package(1, lambda _: None, _load_from_gpu)
    own_code.install(folder, both_names, on_npu)
    run_first_in_spawned(f"from npukit.launch.auto import apply_in_child; apply_in_child({folder!r})")
    if importlib.util.find_spec("apex") is None:
        from npukit.launch import apex

        sys.modules.update(apex.modules())
    if tell and os.environ.get("RANK", "0") == "0":
        atexit.register(lambda: print(summary(REPLACED), end="", file=sys.stderr))


def _owner(place: str) -> tuple[Any, str]:
    first, *path, name = place.split(".")
    return functools.reduce(getattr, path, importlib.import_module(first)), name


def _load_from_gpu(storage: Any, location: str) -> Any:
    """A checkpoint that was saved from a GPU and is loaded without saying where to."""
    if not DEVICE.fullmatch(location):
        return None
    REPLACED["tensors of a checkpoint, saved from a GPU"] += 1
    return storage.to(device=location.replace("cuda", "npu"))


class _Environment(os._Environ):  # type: ignore[type-arg]
    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        if name == VISIBLE:
            _show_devices(value)


def _see_to_environment() -> None:
    if VISIBLE in os.environ and VISIBLE_ON_NPU not in os.environ:
        _show_devices(os.environ[VISIBLE])
    os.environ.__class__ = _Environment  # scripts set the variable themselves, too


def _show_devices(wanted: str) -> None:
    numbers = wanted.replace(" ", "")
    if DEVICES.fullmatch(numbers):
        REPLACED[f"{VISIBLE}, as {VISIBLE_ON_NPU}"] += 1
        os.environ[VISIBLE_ON_NPU] = ",".join(sorted(numbers.split(","), key=int))


def apply_in_child(folder: str) -> None:
    """The same in a process that multiprocessing spawned, which runs the script again under another name."""
    import runpy

    def run_path(path: str, init_globals: Any = None, run_name: str = "<run_path>") -> dict[str, Any]:
        names = {"__name__": run_name, "__file__": path, "__builtins__": __builtins__, **(init_globals or {})}
        exec(compile_script(path), names)
        return names

    apply(folder, tell=False)
    runpy.run_path = run_path  # type: ignore[assignment]


def summary(replaced: Counter[str] | Iterable[tuple[str, int]]) -> str:
    """What was replaced, as the user reads it."""
    rows = Counter(dict(replaced)).most_common()
    if not rows:
        return "npukit --auto: nothing was CUDA's in what ran.\n"
    lines = [f"{count:8}  {what}" for what, count in rows]
    return "\n".join(["npukit --auto replaced while it ran; no file was changed:", *lines]) + "\n"
