"""For projects that need a torch without torch.accelerator: the small module that takes its place in them."""

from __future__ import annotations

import re
from pathlib import Path

NAME = "accelerator_compat"
CPU_NAMES = frozenset({"set_device", "synchronize", "current_device"})  # what _Cpu below has

TEXT = '''"""The accelerator of this machine, whichever it is: an NPU, a CUDA device or none.

What torch.accelerator is in torch 2.7 and later, for older ones.
"""

import torch

try:
    import torch_npu
except ImportError:
    torch_npu = None

_BACKENDS = {"npu": "hccl", "cuda": "nccl"}


def current_accelerator(check_available=True):
    if torch_npu is not None and torch_npu.npu.is_available():
        return torch.device("npu")
    return torch.device("cuda") if torch.cuda.is_available() else None


def is_available():
    return current_accelerator() is not None


def device_count():
    return get_device_module(current_accelerator()).device_count() if is_available() else 0


def get_device_module(device):
    """torch_npu.npu, torch.cuda, or a stand-in whose functions do nothing."""
    kind = device.type if device is not None else "cpu"
    return torch_npu.npu if kind == "npu" else torch.cuda if kind == "cuda" else _Cpu()


def get_default_backend_for_device(device):
    return _BACKENDS.get(device.type, "gloo")


def GradScaler(device_type, *args, **kwargs):
    if device_type == "npu":
        return torch_npu.npu.amp.GradScaler(*args, **kwargs)
    kwargs["enabled"] = kwargs.get("enabled", True) and device_type == "cuda"
    return torch.cuda.amp.GradScaler(*args, **kwargs)


class _Cpu:
    def set_device(self, device):
        pass

    def synchronize(self, device=None):
        pass

    def current_device(self):
        return "cpu"
'''

_PIN = re.compile(r"(?<![\w-])torch\s*(?:==|~=|<=?)\s*(\d+)\.(\d+)")


def pinned_torch(root: Path) -> str:
    """The torch that a project's requirements hold it to (==, ~=, <), or "".

    >>> pinned_torch(Path("project"))  # requirements.txt: torch==1.13.1
    '1.13'
    """
    for pattern in ("requirements*.txt", "pyproject.toml", "setup.py", "setup.cfg", "environment*.y*ml"):
        for file in sorted(root.glob(pattern)):
            match = _PIN.search(file.read_text(encoding="utf-8", errors="replace"))
            if match:
                return f"{match[1]}.{match[2]}"
    return ""


def home_of(file: Path) -> tuple[Path, str]:
    """The folder where the module goes for a file (its outermost package, else beside it), and how it is imported."""
    folder, dots = file.parent, "."
    if not (folder / "__init__.py").exists():
        return folder, f"import {NAME}"
    while (folder.parent / "__init__.py").exists():
        folder, dots = folder.parent, dots + "."
    return folder, f"from {dots} import {NAME}"
