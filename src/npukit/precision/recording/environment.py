"""Record what else affects numbers next to a dump: versions, environment variables and switches."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from npukit.precision.recording.secrets import is_secret
from npukit.report.writing import write_json

FILE = "environment.json"


def write_environment(folder: str) -> None:
    """Write environment.json into a dump's folder. Of several ranks, only the first does."""
    if os.environ.get("RANK", "0") == "0":
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_json(Path(folder) / FILE, environment())


def environment() -> dict[str, Any]:
    """The state of this process that can affect numbers.

    >>> environment()["switches"]["deterministic_algorithms"]
    False
    """
    return {
        "machine": {
            "architecture": platform.machine(),
            "python": platform.python_version(),
            "accelerator": accelerator(),
        },
        "packages": packages(),
        "variables": {name: value for name, value in sorted(os.environ.items()) if not is_secret(name)},
        "switches": switches(),
    }


def accelerator() -> str:
    """The kind of accelerator that torch can use now, npu or cuda; "cpu" if there is none."""
    import torch

    for kind in ("npu", "cuda"):
        if getattr(torch, kind, None) is not None and getattr(torch, kind).is_available():
            return kind
    return "cpu"


def packages() -> dict[str, str]:
    """Installed packages, from the names of their folders: reading hundreds of metadata files would take a second."""
    versions: dict[str, str] = {}
    for folder in reversed(sys.path):
        for path in Path(folder).glob("*-*.dist-info"):
            name, _, version = path.stem.rpartition("-")
            versions[name.lower().replace("_", "-")] = version
    return dict(sorted(versions.items()))


def switches() -> dict[str, Any]:
    """Torch settings that change results without a change of code."""
    import torch

    settings: dict[str, Any] = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cuda.matmul.allow_bf16_reduced_precision_reduction": bool(
            torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
        ),
    }
    npu: Any = getattr(torch, "npu", None)
    if npu is not None:
        settings["npu.conv.allow_hf32"] = npu.conv.allow_hf32
        settings["npu.matmul.allow_hf32"] = npu.matmul.allow_hf32
    return settings
