"""Compare two checkpoints, tensor by tensor: safetensors, torch files, and folders of either, sharded or not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npukit.errors import NpukitError
from npukit.precision.align import plain_path

if TYPE_CHECKING:
    from torch import Tensor

_INSIDE = ("state_dict", "model_state_dict", "module", "model", "weights")  # where frameworks put the weights
_TORCH = (".pt", ".pth", ".bin", ".ckpt")

Load = Callable[[], "Tensor"]


@dataclass(frozen=True)
class Weight:
    """A tensor that both checkpoints have."""

    name: str
    error: float  # relative L2; infinite where shapes differ
    largest: float  # absolute difference
    details: str = ""


@dataclass(frozen=True)
class WeightsComparison:
    """Two checkpoints."""

    left: str
    right: str
    weights: tuple[Weight, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    layers: Mapping[str, float]  # the relative error of all weights of a layer together

    @property
    def same(self) -> bool:
        return not (self.only_left or self.only_right) and all(each.error == 0 for each in self.weights)

    @property
    def exit_code(self) -> int:
        return 0 if self.same else 1


def compare_weights(left: Path, right: Path) -> WeightsComparison:
    """Compare all tensors of two checkpoints; a name that one side lacks is a difference.

    >>> compare_weights(Path("step-100"), Path("step-200")).layers
    """
    ours, theirs = ({plain_path(name): load for name, load in weights_in(path)} for path in (left, right))
    found: list[Weight] = []
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name in ours.keys() & theirs.keys():
        one, other = ours[name](), theirs[name]()
        if one.shape != other.shape:
            shapes = f"shape {list(one.shape)} on the left, {list(other.shape)} on the right"
            found.append(Weight(name, math.inf, math.inf, shapes))
            continue
        wide, other_wide = one.double(), other.double()
        difference, norm = (wide - other_wide).norm().item(), max(wide.norm().item(), other_wide.norm().item())
        largest = (wide - other_wide).abs().max().item() if one.numel() else 0.0
        dtypes = "" if one.dtype == other.dtype else f"{one.dtype} on the left, {other.dtype} on the right"
        error = math.inf if math.isnan(difference) else difference / norm if norm else 0.0
        found.append(Weight(name, error, largest, dtypes))
        layer = sums[layer_of(name)]
        layer[0], layer[1] = layer[0] + difference**2, layer[1] + norm**2
    layers = {name: math.sqrt(a / b) if b else 0.0 for name, (a, b) in sums.items()}
    order = list(ours)
    return WeightsComparison(
        str(left),
        str(right),
        tuple(sorted(found, key=lambda each: order.index(each.name))),
        tuple(name for name in ours if name not in theirs),
        tuple(name for name in theirs if name not in ours),
        dict(sorted(layers.items(), key=lambda item: min(order.index(n) for n in ours if layer_of(n) == item[0]))),
    )


def layer_of(name: str) -> str:
    """The layer that a weight belongs to: its path up to the first number.

    >>> layer_of("model.layers.3.mlp.up_proj.weight")
    'model.layers.3'
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts) - 2)
    return ".".join(parts[: max(number, 0) + 1])


def weights_in(path: Path) -> Iterator[tuple[str, Load]]:
    """The tensors of a checkpoint, by name; each is loaded when it is asked for, where the format allows it."""
    if not path.exists():
        raise NpukitError(f"There is no checkpoint {path}.")
    files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
    if not files:
        files = sorted(each for each in path.iterdir() if each.suffix in _TORCH)
    if not files:
        raise NpukitError(
            f"{path} holds no .safetensors and no .bin, .pt, .pth or .ckpt file: name a checkpoint's folder."
        )
    for file in files:
        yield from _safetensors(file) if file.suffix == ".safetensors" else _torch_file(file)


def _safetensors(file: Path) -> Iterator[tuple[str, Load]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, "pt")
        names = list(opened.keys())
    except (SafetensorError, OSError) as error:
        raise NpukitError(f"{file} is not a safetensors file: {error}.") from None
    for name in names:
        yield name, partial(opened.get_tensor, name)


def _torch_file(file: Path) -> Iterator[tuple[str, Load]]:
    import torch

    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception:
        raise NpukitError(
            f"{file} is not a checkpoint of tensors alone: convert it to safetensors where you trust it; "
            "npukit does not run the code in a pickle."
        ) from None
    while isinstance(content, dict) and (
        inner := next((key for key in _INSIDE if isinstance(content.get(key), dict)), "")
    ):
        content = content[inner]
    tensors = (
        {str(name): each for name, each in content.items() if isinstance(each, torch.Tensor)}
        if isinstance(content, dict)
        else {}
    )
    if not tensors:
        raise NpukitError(f"{file} holds no map of names to tensors.")
    for name, tensor in tensors.items():
        yield name, tensor.clone
