"""The assumptions behind estimates of memory and time. planning.yaml gives the source of each figure."""

from __future__ import annotations

import functools
from dataclasses import asdict, dataclass
from typing import Any

from npukit.errors import NpukitError
from npukit.facts.cards import card
from npukit.facts.data import load_yaml, make_row
from npukit.facts.peak_flops import gpus

Range = tuple[float, float]


@dataclass(frozen=True)
class Planning:
    """The assumptions. A range is (low, high), as a share of a peak or a time."""

    idle_mib: int
    outside_mib: int
    compute: Range
    attention: Range
    memory: Range
    communication: Range
    launch_us: Range
    issued_by_autograd: float
    computed_again: float
    collective_us: Range
    overlap: Range
    memory_error: Range


@functools.cache
def planning() -> Planning:
    """The assumptions in planning.yaml.

    >>> planning().idle_mib
    3200
    """
    return make_row(Planning, load_yaml("planning.yaml"))


@dataclass(frozen=True)
class Speed:
    """The peaks of a device in operations or bytes per second, as far as real training approaches them. Links are 0 if
    no figure is known.
    """

    flops: float
    bandwidth: float
    link: float = 0.0
    network: float = 0.0


def speed_of(name: str) -> Speed | None:
    """The peaks of an Ascend card, or of a GPU in gpus.yaml; None if unknown.

    >>> speed_of("910B3").bandwidth
    1759000000000.0
    """
    row = _gpu(name)
    try:
        known = row or asdict(card(name))
    except NpukitError:
        return None
    if known["tflops"] is None or known["bandwidth_gbs"] is None:
        return None
    rates = [(known[key] or 0.0) * 1e9 for key in ("bandwidth_gbs", "link_gbs", "network_gbs")]
    return Speed(known["tflops"] * 1e12 * known.get("reaches", 1.0), *rates)


@dataclass(frozen=True)
class Device:
    """The device that a training run is planned for."""

    name: str
    memory_mib: int
    usable_mib: int  # available to programs
    bf16: bool
    is_gpu: bool


def device_of(name: str) -> Device:
    """An Ascend card, or a GPU for comparison.

    >>> device_of("h100").usable_mib
    81559
    """
    if row := _gpu(name):
        return Device(row["name"], row["memory_mib"], row["memory_mib"], row.get("bf16", True), is_gpu=True)
    known = card(name)
    return Device(known.name, known.memory_mib, known.memory_mib - planning().idle_mib, known.bf16, is_gpu=False)


def _gpu(name: str) -> dict[str, Any] | None:
    lower = name.lower()
    return next((row for row in gpus() if lower in map(str.lower, (row["name"], *row.get("also", ())))), None)
