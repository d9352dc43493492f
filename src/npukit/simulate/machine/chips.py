"""The simulated chips, numbered as the management tools number them."""

from __future__ import annotations

import os
from dataclasses import dataclass

from npukit.facts.cards import DEFAULT_CARD, Card, card

HEALTH = {"lost": "Critical", "ecc": "Alarm"}
BUSES = (0xC1, 0xC2, 0x81, 0x82, 0x01, 0x02, 0x41, 0x42)


@dataclass(frozen=True)
class SimulatedChip:
    """One chip. `device` counts chips; `npu` counts cards, which may have two chips each."""

    device: int
    npu: int
    number: int
    bus: str

    @property
    def health(self) -> str:
        """The health that npu-smi shows: OK, unless a fault was injected."""
        faults = {fault.partition(",")[0].strip() for fault in os.environ.get("NPUKIT_SIM_FAULTS", "").split(";")}
        return next((health for fault, health in HEALTH.items() if f"{fault}={self.device}" in faults), "OK")


def simulated_card() -> Card:
    """The kind of card that this process sees."""
    return card(os.environ.get("NPUKIT_SIM_CARD", DEFAULT_CARD))


def chips() -> list[SimulatedChip]:
    """The chips that this process sees."""
    chips_per_npu = 2 if simulated_card().links == "pairs" else 1
    return [
        SimulatedChip(
            device, *divmod(device, chips_per_npu), f"{device // len(BUSES):04X}:{BUSES[device % len(BUSES)]:02X}:00.0"
        )
        for device in range(int(os.environ.get("NPUKIT_SIM_DEVICES", "0")))
    ]
