"""A process that runs the checks of a group one by one, and writes a line about each as soon as it is finished.

Run as `python -m npukit.selftest.worker GROUP FIRST FILE`, or as several such ranks. Only the first one writes, and a
check has failed if it failed on any rank.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from npukit.errors import NpukitError
from npukit.launch.devices import torch_device
from npukit.packages import missing_package
from npukit.precision.dump import Value
from npukit.precision.replay import error_of
from npukit.precision.tolerance import ceiling
from npukit.selftest.check import DeviceCheck
from npukit.selftest.groups import checks_of
from npukit.selftest.reference import plain, reference

Line = dict[str, Any]


def main() -> None:
    group, first, file = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    device = torch_device()
    ranks = Ranks(device) if group == "collectives" else None
    writes = not ranks or ranks.rank == 0
    try:
        checks, missing = checks_of(group, device), ""
    except ModuleNotFoundError as error:
        checks, missing = [], str(missing_package(error, extra="train") or error)
    if writes:
        _write(file, {"checks": [check.name for check in checks], "missing": missing})
    for number, check in list(enumerate(checks))[first:]:
        if writes:
            _write(file, {"start": number})
        began = time.monotonic()
        line = outcome_of(check, device)
        if ranks:
            line = ranks.worst(number, line)
        if writes:
            _write(file, {"end": number, "seconds": round(time.monotonic() - began, 3), **line})
    if ranks:
        dist.destroy_process_group()


def _write(file: Path, line: Line) -> None:
    with file.open("a") as stream:
        stream.write(json.dumps(line) + "\n")


def outcome_of(check: DeviceCheck, device: torch.device) -> Line:
    """Run a check and compare its result with the shipped one."""
    try:
        outputs = check.run(device)
    except ModuleNotFoundError as error:
        return {"outcome": "skipped", "message": str(missing_package(error, extra="train") or error)}
    except Exception as error:
        lacks = isinstance(error, NpukitError) and error.code == "missing_package"
        message = str(error) if isinstance(error, NpukitError) else f"{type(error).__name__}: {error}"
        return {"outcome": "skipped" if lacks else "failed", "message": message}
    return judged(check, outputs)


def judged(check: DeviceCheck, outputs: Sequence[Tensor | None]) -> Line:
    """Whether outputs agree with the shipped ones within the tolerance of their dtype; integers must be equal."""
    if not check.key:
        return {"outcome": "passed"}
    expected = reference()[check.key]
    if len(outputs) < len(expected):
        return {"outcome": "failed", "message": f"{len(outputs)} outputs, not {len(expected)}"}
    pairs = [(mine, right) for mine, right in zip(outputs, expected, strict=False) if right is not None]
    error = max((_error(mine, right) for mine, right in pairs), default=0.0)
    dtype = str(check.dtype or torch.float32).removeprefix("torch.")
    tolerance = ceiling([Value(dtype)])
    line = {"outcome": "passed" if error <= tolerance else "failed", "error": _finite(error), "tolerance": tolerance}
    return line if error <= tolerance else {**line, "found": [plain(output) for output in outputs]}


def _error(output: Tensor | None, expected: Tensor) -> float:
    if output is None or output.shape != expected.shape:
        return math.inf
    output = output.detach().cpu()
    if not expected.is_floating_point():
        return 0.0 if torch.equal(output.long(), expected.long()) else math.inf
    return error_of(output, expected)


def _finite(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


class Ranks:
    """The ranks of a job, which communicate through its store even if collectives fail."""

    def __init__(self, device: torch.device) -> None:
        if device.index is not None:
            torch.accelerator.set_device_index(device.index)
        dist.init_process_group(dist.get_default_backend_for_device(device))
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store: Any = dist.distributed_c10d._get_default_store()

    def worst(self, number: int, line: Line) -> Line:
        """The worst outcome of a check on any rank."""
        self._store.set(f"selftest/{number}/{self.rank}", json.dumps(line))
        lines = [json.loads(self._store.get(f"selftest/{number}/{rank}")) for rank in range(self.size)]
        bad = next((rank for rank, line in enumerate(lines) if line["outcome"] == "failed"), None)
        if bad is None:
            return line
        return {**lines[bad], "message": f"rank {bad}: {lines[bad].get('message', 'a wrong result')}"}


if __name__ == "__main__":
    main()
