"""Contestants that each run in a process of their own, and the rows of the table of their results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

MARK = "RESULT "


def result(tokens_per_second: float, **more: float) -> None:
    """Print what a contestant reached; called in its process."""
    import torch

    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    print(f"{MARK}{json.dumps({'tokens_per_second': tokens_per_second, 'peak_gib': peak, **more})}", flush=True)


def result_of(*words: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a script, or `-m` and a module; what it printed with `result`, or its last words as `failed`."""
    command = [sys.executable, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)
    line = next((text for text in done.stdout.splitlines() if text.startswith(MARK)), None)
    return json.loads(line.removeprefix(MARK)) if line else {"failed": done.stdout[-1500:]}
