"""The peak matrix throughput of devices."""

from __future__ import annotations

import re
from typing import Any

from npukit.facts.cards import cards
from npukit.facts.data import load_yaml


def gpus() -> list[dict[str, Any]]:
    """The rows of gpus.yaml."""
    rows: list[dict[str, Any]] = load_yaml("gpus.yaml")
    return rows


def peak_flops(device_name: str) -> float | None:
    """Peak floating-point operations per second of a device in bf16 (or fp16) without sparsity; None if unknown.

    >>> peak_flops("NVIDIA H200")
    989000000000000.0
    """
    words = device_name.split()
    for card in cards().values():
        if card.soc in words:
            return card.tflops and card.tflops * 1e12
    gpu = next((row for row in gpus() if re.search(rf"\b{re.escape(row['name'])}\b", device_name)), None)
    return float(gpu["tflops"]) * 1e12 if gpu else None
