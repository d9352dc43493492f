"""Rebuild every operator that a run used and run it alone, to find kernels of a device that are out of tolerance.

Arguments come from the tensors of a dump. Without tensors they are drawn at random with the recorded range, mean and
norm. Results are compared with the CPU in float64, on the scale of the CPU's own rounding error in the run's dtype.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npukit.errors import NpukitError
from npukit.precision.dump import Call, Value
from npukit.precision.judge import draws
from npukit.precision.reading.find import find_dumps, read
from npukit.precision.replay import Unknown, error_of, load, rebuild
from npukit.precision.tolerance import unit
from npukit.report.unfinished import temporary_folder

if TYPE_CHECKING:
    from torch import Tensor

_TIMES = 8.0  # how many times the CPU's own rounding error a kernel may have


@dataclass(frozen=True)
class OperatorCase:
    """One operator with one combination of shapes, dtypes and settings."""

    op: str
    row: str  # the first such call in the dump
    dtype: str
    shapes: str
    calls: int
    outcome: Literal["in line", "out of line", "not checked"]
    error: float | None = None  # relative error against float64
    rounding: float | None = None  # the CPU's error in the run's dtype
    why: str = ""  # why it was not checked


@dataclass(frozen=True)
class KernelsCheck:
    """The results of checking the operators of a dump on a device."""

    dump: str
    device: str
    kernels: tuple[OperatorCase, ...]

    @property
    def out_of_line(self) -> tuple[OperatorCase, ...]:
        return tuple(kernel for kernel in self.kernels if kernel.outcome == "out of line")

    @property
    def exit_code(self) -> int:
        return 1 if self.out_of_line else 0


def check_kernels(dump: Path, environment: Mapping[str, str]) -> KernelsCheck:
    """Run every operator of a dump on the device of `environment`, in a separate process.

    >>> check_kernels(Path("dump"), choose(Wanted.sim).environment()).out_of_line
    ()
    """
    find_dumps(dump)
    with temporary_folder("kernels") as folder:
        result = folder / "kernels.json"
        done = subprocess.run([sys.executable, "-m", __name__, str(dump), str(result)], env=dict(environment))
        if done.returncode or not result.is_file():
            raise NpukitError(f"The process that ran the operators of {dump} ended with exit code {done.returncode}.")
        written = json.loads(result.read_text())
    return KernelsCheck(str(dump), written["device"], tuple(OperatorCase(**case) for case in written["kernels"]))


def check_here(dump: Path, device: Any) -> Iterator[OperatorCase]:
    """Check the operators of a dump on a device of this process."""
    calls: dict[Any, list[Call]] = {}
    for (step, _), file in find_dumps(dump).items():
        for call in read(file, step).calls:
            if call.kind == "op" and call.name.startswith(("Aten.", "NPU.")):
                calls.setdefault(_signature(call), []).append(call)
    for alike in calls.values():
        yield _check(alike[0], len(alike), device)


def _signature(call: Call) -> Any:
    return call.op, tuple((place, value.dtype, value.shape, str(value.scalar)) for place, value in call.inputs.items())


def _check(call: Call, calls: int, device: Any) -> OperatorCase:
    tensors = [value for value in call.inputs.values() if value.is_tensor]
    dtype = next((value.dtype for value in [*call.outputs.values(), *tensors] if value.is_float), "")
    shapes = ", ".join("x".join(map(str, value.shape)) or "scalar" for value in tensors[:3])
    plain = (call.op, call.name, dtype, shapes, calls)
    if draws(call):
        return OperatorCase(*plain, "not checked", why="it draws random numbers")
    try:
        exact, rounded, computed = (
            _run(call, where, wide) for where, wide in (("cpu", True), ("cpu", False), (device, False))
        )
        floats = [place for place, tensor in enumerate(computed) if tensor.is_floating_point()]
        off = max((error_of(computed[place], exact[place]) for place in floats), default=None)
        rounding = max((error_of(rounded[place], exact[place]) for place in floats), default=None)
    except (Unknown, KeyError, IndexError) as error:
        return OperatorCase(*plain, "not checked", why=f"the dump lacks an argument ({error})")
    except (RuntimeError, TypeError, AttributeError, NotImplementedError, ValueError) as error:
        return OperatorCase(*plain, "not checked", why=str(error).strip().split("\n")[0][:120] or type(error).__name__)
    if off is None or rounding is None:
        same = all(one.equal(other) for one, other in zip(rounded, computed, strict=True))
        return OperatorCase(*plain, "in line" if same else "out of line", 0.0 if same else math.inf, 0.0)
    limit = _TIMES * max(rounding, unit([Value(dtype)]))
    return OperatorCase(*plain, "in line" if off <= limit else "out of line", off, rounding)


def _run(call: Call, device: Any, wide: bool) -> list[Tensor]:
    """The results of an operator, moved to the CPU; for one that only writes to its arguments, those arguments."""
    import torch

    made: list[Tensor] = []

    def tensor_at(place: str) -> Tensor:
        value = call.inputs[place]
        tensor = load(value) if value.file else drawn(value, place)
        made.append((tensor.double() if wide and tensor.is_floating_point() else tensor.clone()).to(device))
        return made[-1]

    arguments, keywords = (rebuild(nest, tensor_at, "", wide, device) for nest in call.given)
    namespace = torch.ops.npu if call.name.startswith("NPU.") else torch.ops.aten
    with torch.no_grad():
        result = getattr(namespace, call.op)(*arguments, **keywords)
    results = [result] if isinstance(result, torch.Tensor) else list(result or ())
    tensors = [item for item in results if isinstance(item, torch.Tensor)] or made
    return [tensor.detach().cpu() for tensor in tensors]


def drawn(value: Value, name: str) -> Tensor:
    """A random tensor with the recorded range, mean and norm. The same name gives the same tensor."""
    import torch

    if None in (value.minimum, value.maximum) or not math.isfinite((value.minimum or 0) + (value.maximum or 0)):
        raise Unknown("a tensor without finite figures")
    generator = torch.Generator().manual_seed(sum(map(ord, name)) + value.count)
    dtype = getattr(torch, value.dtype)
    low, high = value.minimum or 0.0, value.maximum or 0.0
    if value.dtype == "bool":
        return torch.rand(value.shape, generator=generator) < (0.5 if low != high else low)
    if not value.is_float:
        return torch.randint(int(low), int(high) + 1, value.shape, generator=generator).to(dtype)
    mean, norm = value.mean or 0.0, value.norm or 0.0
    spread = math.sqrt(max(norm * norm / max(value.count, 1) - mean * mean, 0.0))
    return (
        (torch.randn(value.shape, generator=generator, dtype=torch.float64) * spread + mean).clamp(low, high).to(dtype)
    )


def _main() -> None:
    from npukit.launch.devices import torch_device

    device = torch_device()
    kernels = [asdict(case) for case in check_here(Path(sys.argv[1]), device)]
    Path(sys.argv[2]).write_text(json.dumps({"device": str(device), "kernels": kernels}))


if __name__ == "__main__":
    _main()
