"""Describe the state of the simulated NPU on this machine."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from npukit import __version__
from npukit.facts.cards import Card, cards
from npukit.simulate import build


@dataclass(frozen=True)
class SimulatedPart:
    """One of the parts that set-up creates."""

    name: str
    version: str
    ready: bool
    folder: str


@dataclass(frozen=True)
class Information:
    """The state of the simulated NPU for the installed torch."""

    torch: str
    parts: list[SimulatedPart]
    cards: list[Card]


def information() -> Information:
    """Look up the state without building anything."""
    setup = build.plan()
    parts = [
        SimulatedPart("torch_npu", _torch_npu_version(setup.torch_npu), setup.torch_npu.exists(), str(setup.torch_npu)),
        SimulatedPart("CANN (simulated)", setup.cann_version, setup.home.exists(), str(setup.home)),
        SimulatedPart("operators", __version__, setup.operators.exists(), str(setup.operators)),
    ]
    return Information(setup.torch_version, parts, [*cards().values()])


def _torch_npu_version(folder: Path) -> str:
    distributions = importlib.metadata.distributions(name="torch_npu", path=[str(folder)])
    return next((distribution.version for distribution in distributions), "")
