"""Runs CUDA code on an NPU without editing it: torch_npu's transfer_to_npu, with additions and corrections.

transfer_to_npu puts torch.npu in the place of torch.cuda and "npu" in the place of "cuda" where torch takes a device.
On top of it: table.py names each further place in torch that is changed; own_code.py makes devices answer to CUDA's
name in the user's own modules; the environment and apex are seen to here. Every replacement is counted, and the counts
are shown when the process ends.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from npukit.shim import own_code
from npukit.shim.children import run_first_in_spawned
from npukit.shim.names import DEVICE, both_names, on_npu
from npukit.shim.replaced import REPLACED, summary

DEVICES = re.compile(r"\d+(,\d+)*")
VISIBLE, VISIBLE_ON_NPU = "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"


def apply(folder: str, announce: bool = True) -> None:
    """Patch this process and those that it spawns; `folder` contains the user's own modules."""
    _see_to_environment()
    with warnings.catch_warnings(record=True):
        transfer: Any = importlib.import_module("torch_npu.contrib.transfer_to_npu")
    import torch

    from npukit.shim.table import change

    undynamic: Any = torch._dynamo.disable
    transfer._replace_cuda_to_npu_in_list = undynamic(_arguments_on_npu)
    transfer._replace_cuda_to_npu_in_kwargs = undynamic(_keyword_on_npu)
    change("npu")
    torch.serialization.register_package(1, lambda _: None, _load_from_gpu)
    own_code.install(folder, both_names, on_npu)
    run_first_in_spawned(f"from npukit.shim.to_npu import apply_in_child; apply_in_child({folder!r})")
    if importlib.util.find_spec("apex") is None:
        from npukit.shim import apex

        sys.modules.update(apex.modules())
    if announce and os.environ.get("RANK", "0") == "0":
        atexit.register(lambda: print(summary(REPLACED), end="", file=sys.stderr))


def _arguments_on_npu(arguments: list[Any], replace_int: bool | None) -> list[Any]:
    """Replaces transfer_to_npu's function, which treats any text that contains "cuda" as a device."""
    for place, value in enumerate(arguments):
        is_index = replace_int and type(value) is int
        arguments[place] = f"npu:{value}" if is_index else on_npu(value)
    return arguments


def _keyword_on_npu(keywords: dict[str, Any], name: str, value: Any) -> None:
    keywords[name] = f"npu:{value}" if type(value) is int else on_npu(value)


def _load_from_gpu(storage: Any, location: str) -> Any:
    """Load a checkpoint from a GPU without map_location to an NPU."""
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
    os.environ.__class__ = _Environment  # scripts may set the variable themselves


def _show_devices(wanted: str) -> None:
    numbers = wanted.replace(" ", "")
    if DEVICES.fullmatch(numbers):
        REPLACED[f"{VISIBLE}, as {VISIBLE_ON_NPU}"] += 1
        os.environ[VISIBLE_ON_NPU] = ",".join(sorted(numbers.split(","), key=int))


def apply_in_child(folder: str) -> None:
    """The same in a process that multiprocessing spawned, which runs the script under another module name."""
    import runpy

    def run_path(path: str, init_globals: Any = None, run_name: str = "<run_path>") -> dict[str, Any]:
        names = {"__name__": run_name, "__file__": path, "__builtins__": __builtins__, **(init_globals or {})}
        exec(own_code.compile_own(Path(path).read_bytes(), path), names)
        return names

    apply(folder, announce=False)
    runpy.run_path = run_path  # type: ignore[assignment]
