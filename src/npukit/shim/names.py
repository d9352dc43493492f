"""Devices that answer to CUDA's name."""

from __future__ import annotations

import re
from typing import Any

from npukit.shim.replaced import REPLACED

DEVICE = re.compile(r"cuda(:\d+)?")
BACKENDS_ON_CPU = {"nccl": "gloo", "cpu:gloo,cuda:nccl": "gloo", "cuda:nccl,cpu:gloo": "gloo"}


def on_npu(value: Any) -> Any:
    """The NPU in place of a CUDA device; anything else unchanged, such as a file name that contains "cuda".

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
        # A map_location for torch.load: storages saved from a GPU have CUDA's name, those from an NPU do not.
        places = {key: on_npu(place) for key, place in value.items()}
        return places | {on_npu(key): place for key, place in places.items()}
    return value


def on_cpu(value: Any) -> Any:
    """The CPU in place of a CUDA device, its backend in place of CUDA's; anything else unchanged.

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
    """The name of an NPU that also equals CUDA's.

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
        return hash(self.cuda)  # dicts in CUDA code have CUDA's name as a key

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return part in str(self) or part in self.cuda

    def startswith(self, prefix: Any, *bounds: Any) -> bool:
        return str(self).startswith(prefix, *bounds) or self.cuda.startswith(prefix, *bounds)

    def __str__(self) -> str:
        return str.__str__(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)


def both_names(kind: Any) -> Any:
    """A device type that equals both names, for the user's code."""
    return BothNames("npu", "cuda") if type(kind) is str and kind in ("npu", "cuda") else kind
