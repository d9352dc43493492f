"""Which compiled kernels of CANN each kind of card needs."""

from __future__ import annotations

import functools
import re
from pathlib import Path


@functools.cache
def _rows() -> list[dict[str, str]]:
    import yaml

    rows: list[dict[str, str]] = yaml.safe_load(Path(__file__).with_name("kernels.yaml").read_text(encoding="utf-8"))
    return rows


def kernel_folder(card: str) -> str | None:
    """The folder of the kernels for a card, by its name in npu-smi; None for a card that is not known.

    >>> kernel_folder("910B3")
    'ascend910b'
    """
    return next((row["folder"] for row in _rows() if re.fullmatch(row["cards"], card)), None)
