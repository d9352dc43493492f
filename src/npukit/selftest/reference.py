"""The results that ship with npukit. `python -m npukit.selftest.reference` computes them on the CPU and writes them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

FILE = Path(__file__).with_name("reference.json")
DIGITS = 9
Results = dict[str, list[Tensor | None]]


@functools.cache
def reference() -> Results:
    """The shipped results of every key; None for an output that is not compared."""
    return {key: [_tensor(output) for output in outputs] for key, outputs in json.loads(FILE.read_text()).items()}


def _tensor(data: dict[str, Any] | None) -> Tensor | None:
    return None if data is None else torch.tensor(data["values"]).reshape(data["shape"])


def plain(tensor: Tensor | None) -> dict[str, Any] | None:
    """A tensor as JSON.

    >>> plain(torch.tensor([1.5, 2.0]))
    {'shape': [2], 'values': [1.5, 2.0]}
    """
    if tensor is None:
        return None
    values = tensor.detach().cpu().flatten()
    numbers = (
        [float(f"{number:.{DIGITS}g}") for number in values.tolist()] if values.is_floating_point() else values.tolist()
    )
    return {"shape": list(tensor.shape), "values": numbers}


def make() -> dict[str, Sequence[Tensor | None]]:
    """Compute the results: formulas in float64 if they accept it, the rest in float32."""
    from npukit.selftest.models import serving, training
    from npukit.selftest.operator_cases import ALL, CASES, GRADIENTS, Case, Gradient
    from npukit.selftest.operators import formula

    cpu = torch.device("cpu")
    results: dict[str, Sequence[Tensor | None]] = {}
    cases: list[Case | Gradient] = [*CASES, *GRADIENTS]
    for number, case in enumerate(cases):
        dtype = torch.float64 if case.dtypes == ALL else torch.float32
        results[f"{number}-{case.op}"] = formula(case, dtype, cpu)
    for check in [*training(), *serving()]:
        if check.key not in results:
            results[check.key] = check.run(cpu)
    return results


def write() -> None:
    """Write reference.json, with one key per line."""
    lines = [
        f"{json.dumps(key)}: {json.dumps([plain(output) for output in outputs])}" for key, outputs in make().items()
    ]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    write()
