"""Recompute a suspect call alone on the CPU, from the tensors in a dump, to find out which side is wrong."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError
from npukit.precision.dump import Call, Value
from npukit.precision.result import Replay
from npukit.report.writing import whole_folder

if TYPE_CHECKING:
    from torch import Tensor

_TIMES = 8.0  # how many times the CPU's own rounding error a result may be off


class Unknown(Exception):
    """An argument that is not in the dump."""


def replay(left: Call, right: Call) -> Replay | None:
    """Recompute an operator in its own dtype and in float64; None if the dumps lack the necessary tensors.

    Each side is compared using its own arguments: if these differ, neither side is wrong because of it.

    >>> replay(left, right).wrong
    'right'
    """
    try:
        place = next(place for place, value in left.outputs.items() if value.is_float)
        errors, roundings = zip(*(_errors(call, place) for call in (left, right)), strict=True)
    except (Unknown, StopIteration, KeyError, RuntimeError, TypeError, AttributeError, NotImplementedError):
        return None
    rounding = max(roundings)
    limit = _TIMES * max(rounding, 2**-24)
    bad = [not error <= limit for error in errors]
    wrong = "both" if all(bad) else "left" if bad[0] else "right" if bad[1] else "neither"
    return Replay(errors[0], errors[1], rounding, wrong)  # type: ignore[arg-type]


def _errors(call: Call, place: str) -> tuple[float, float]:
    """The error of a call's output, and that of the CPU in the same dtype, against float64."""
    exact = outputs_of(call, wide=True)[place]
    return error_of(load(call.outputs[place]), exact), error_of(outputs_of(call, wide=False)[place], exact)


def outputs_of(call: Call, wide: bool) -> dict[str, Tensor]:
    """The results of an operator on the CPU, by place; in float64 if `wide`."""
    import torch

    namespace, function = ("npu", call.op) if call.name.startswith("NPU.") else ("aten", call.op)

    def tensor_at(place: str) -> Tensor:
        tensor = load(call.inputs[place])
        return tensor.double() if wide and tensor.is_floating_point() else tensor

    arguments, keywords = (rebuild(nest, tensor_at, "", wide) for nest in call.given)
    with torch.no_grad():
        result = getattr(getattr(torch.ops, namespace), function)(*arguments, **keywords)
    results = [result] if isinstance(result, torch.Tensor) else result
    return {str(place): tensor for place, tensor in enumerate(results) if isinstance(tensor, torch.Tensor)}


def write_script(call: Call, folder: Path) -> None:
    """Write a folder with the tensors of one call and a script that runs the call alone on any device.

    >>> write_script(call, Path("reproduce"))
    """
    tensors = {value.file.name: value.file for value in call.inputs.values() if value.file}
    if not tensors or call.kind != "op":
        raise NpukitError(f"{call.title} cannot be run alone: capture both runs with --level ops --tensors first.")
    with whole_folder(folder) as beside:
        for name, file in tensors.items():
            shutil.copyfile(file, beside / name)
        (beside / "arguments.json").write_text(json.dumps(call.given, indent=1))
        text = Path(__file__).with_name("reproduce.py.txt").read_text(encoding="utf-8")
        namespace = "npu" if call.name.startswith("NPU.") else "aten"
        (beside / "reproduce.py").write_text(text.replace("OPERATOR", f"torch.ops.{namespace}.{call.op}"))


def rebuild(nest: Any, tensor_at: Callable[[str], Tensor], place: str, wide: bool, device: Any = "cpu") -> Any:
    """Rebuild arguments from their description in a dump. `tensor_at` returns the tensor at a place."""
    import torch

    if isinstance(nest, list):
        return [
            rebuild(item, tensor_at, f"{place}.{n}" if place else str(n), wide, device) for n, item in enumerate(nest)
        ]
    if not isinstance(nest, dict):
        return nest
    kind = nest.get("type")
    if not isinstance(kind, str):
        return {
            key: rebuild(item, tensor_at, f"{place}.{key}" if place else key, wide, device)
            for key, item in nest.items()
        }
    if "dtype" in nest:
        return tensor_at(place)
    value = nest.get("value")
    if kind == "torch.dtype":
        dtype = getattr(torch, str(value).removeprefix("torch."))
        return torch.float64 if wide and dtype.is_floating_point else dtype
    if kind == "torch.device":
        return torch.device(device)
    if value is None:
        raise Unknown(kind)
    return value


def load(value: Value) -> Tensor:
    """Load a tensor of a dump, without executing code from a pickle."""
    import torch

    try:
        if value.file is None or not value.file.is_file():
            raise Unknown("a tensor that was not written")
    except (OSError, ValueError):
        raise Unknown("a tensor whose name no file can have") from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # raised by malformed pickles
            loaded = torch.load(value.file, map_location="cpu", weights_only=True)
    except Exception:
        raise NpukitError(f"{value.file} is not a saved tensor: it is damaged, or contains something else.") from None
    if not isinstance(loaded, torch.Tensor):
        raise NpukitError(f"{value.file} holds a {type(loaded).__name__}, not a tensor.")
    return loaded


def error_of(computed: Tensor, exact: Tensor) -> float:
    """The L2 norm of the difference, relative to the exact result."""
    difference = (computed.double() - exact.double()).norm()
    scale = exact.double().norm()
    return float(difference / scale) if scale else float(difference)
