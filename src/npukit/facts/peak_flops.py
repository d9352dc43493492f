"""How fast a device multiplies matrices at best."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

from npukit.facts.cards import cards


@functools.cache
def gpus() -> list[dict[str, Any]]:
    """The rows of gpus.yaml."""
    import yaml

    rows: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("gpus.yaml").read_text(encoding="utf-8"))
    return rows


def peak_flops(device_name: str) -> float | None:
    """Floating-point operations per second of a device, in bf16 (or fp16) without sparsity; None where not known.

    >>> peak_flops("NVIDIA H200")
    989000000000000.0
    """
    words = device_name.split()
    for card in cards().values():
        if card.soc in words:
            return card.tflops and card.tflops * 1e12
    gpu = next((row for row in gpus() if re.search(rf"\b{re.escape(row['name'])}\b", device_name)), None)
    return float(gpu["tflops"]) * 1e12 if gpu else None
