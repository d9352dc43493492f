"""What code is to run on after the migration, and in which style it is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from npukit.facts.cards import DEFAULT_CARD


class Style(str, Enum):
    """How migrated code names the device."""

    portable = "portable"  # the same file runs on CUDA, NPU and CPU
    npu = "npu"  # torch_npu, .npu(), hccl


@dataclass(frozen=True)
class Target:
    """Versions, card and style that rules write for."""

    style: Style = Style.portable
    torch: tuple[int, int] = (2, 13)  # the torch that the project is held to
    torch_npu: str = "2.13"
    card: str = DEFAULT_CARD
    distributed: bool = False  # whether scripts for one card become scripts for several

    @property
    def has_accelerator(self) -> bool:
        return self.torch >= (2, 7)  # before, current_accelerator() cannot check

    @property
    def portable(self) -> bool:
        return self.style is Style.portable
