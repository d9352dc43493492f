"""A device by CUDA's name, and the device that is meant."""

from __future__ import annotations

import re
from typing import Any

from npukit.shim.replaced import REPLACED

DEVICE = re.compile(r"cuda(:\d+)?")
BACKENDS_ON_CPU = {"nccl": "gloo", "cpu:gloo,cuda:nccl": "gloo", "cuda:nccl,cpu:gloo": "gloo"}


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


def on_cpu(value: Any) -> Any:
    """The CPU in place of a CUDA device, its backend in place of CUDA's; anything else as it is.

    >>> on_cpu("cuda:1"), on_cpu(torch.device("cuda", 1)), on_cpu("cuda.txt")
    ('cpu', device(type='cpu'), 'cuda.txt')
    """
    import torch

    if isinstance(value, str):
        return "cpu" if DEVICE.fullmatch(value) else BACKENDS_ON_CPU.get(value, value.replace("torch.cuda.", "torch."))
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    if isinstance(value, dict):
        return {on_cpu(key): on_cpu(item) for key, item in value.items()}
    return value


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
