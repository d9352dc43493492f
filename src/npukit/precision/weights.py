"""Compare two checkpoints, tensor by tensor."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from npukit.precision.align import plain_path
from npukit.precision.reading.checkpoints import weights_in


@dataclass(frozen=True)
class Weight:
    """A tensor that both checkpoints contain."""

    name: str
    error: float  # relative L2 error; infinite if the shapes differ
    largest: float  # largest absolute difference
    details: str = ""


@dataclass(frozen=True)
class WeightsComparison:
    """The comparison of two checkpoints."""

    left: str
    right: str
    weights: tuple[Weight, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    layers: Mapping[str, float]  # the relative error of all weights of a layer together

    @property
    def same(self) -> bool:
        return not (self.only_left or self.only_right) and all(weight.error == 0 for weight in self.weights)

    @property
    def exit_code(self) -> int:
        return 0 if self.same else 1


def compare_weights(left: Path, right: Path) -> WeightsComparison:
    """Compare all tensors of two checkpoints. A name that one of them lacks is a difference.

    >>> compare_weights(Path("step-100"), Path("step-200")).layers
    """
    ours, theirs = ({plain_path(name): load for name, load in weights_in(path)} for path in (left, right))
    weights: list[Weight] = []
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for name in ours.keys() & theirs.keys():
        one, other = ours[name](), theirs[name]()
        if one.shape != other.shape:
            shapes = f"shape {list(one.shape)} on the left, {list(other.shape)} on the right"
            weights.append(Weight(name, math.inf, math.inf, shapes))
            continue
        wide, other_wide = one.double(), other.double()
        difference, norm = (wide - other_wide).norm().item(), max(wide.norm().item(), other_wide.norm().item())
        largest = (wide - other_wide).abs().max().item() if one.numel() else 0.0
        dtypes = "" if one.dtype == other.dtype else f"{one.dtype} on the left, {other.dtype} on the right"
        error = math.inf if math.isnan(difference) else difference / norm if norm else 0.0
        weights.append(Weight(name, error, largest, dtypes))
        layer = sums[layer_of(name)]
        layer[0], layer[1] = layer[0] + difference**2, layer[1] + norm**2
    layers = {name: math.sqrt(a / b) if b else 0.0 for name, (a, b) in sums.items()}
    order = list(ours)
    return WeightsComparison(
        str(left),
        str(right),
        tuple(sorted(weights, key=lambda weight: order.index(weight.name))),
        tuple(name for name in ours if name not in theirs),
        tuple(name for name in theirs if name not in ours),
        dict(sorted(layers.items(), key=lambda item: min(order.index(n) for n in ours if layer_of(n) == item[0]))),
    )


def layer_of(name: str) -> str:
    """The layer of a weight: its path up to the first number.

    >>> layer_of("model.layers.3.mlp.up_proj.weight")
    'model.layers.3'
    """
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts) - 2)
    return ".".join(parts[: max(number, 0) + 1])
