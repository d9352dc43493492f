"""Says when a script that looks for CUDA has left the NPU idle, which otherwise only its duration shows."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_NPU = re.compile(r"(?<![a-z])npu(?![a-z])", re.IGNORECASE)  # "input" contains it too


def left_npu_idle(folder: str) -> bool:
    """Whether this process had an NPU and never used it, and code under `folder` that it imported mentions CUDA.

    >>> left_npu_idle("/home/me/project")
    True
    """
    torch_npu = sys.modules.get("torch_npu")
    if torch_npu is None or torch_npu.npu.is_initialized() or int(os.environ.get("LOCAL_RANK", "0")):
        return False
    sources = [text for path in _imported_from(folder) if "cuda" in (text := path.read_text(errors="replace"))]
    return bool(sources) and not any(map(_NPU.search, sources))


def _imported_from(folder: str) -> list[Path]:
    """The project's own files that are imported, installed packages excluded."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    inside = (Path(file) for file in files if file and file.endswith(".py") and file.startswith(folder + os.sep))
    return [path for path in inside if "site-packages" not in path.parts and path.is_file()]
