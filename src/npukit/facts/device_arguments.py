"""Functions that take a device or a backend by position."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal


@functools.cache
def positions(kind: Literal["device", "backend"]) -> dict[str, int]:
    """The position of the argument, by the full name of the function, or by `.NAME` of a method.

    >>> positions("device")["torch.load"], positions("backend")["torch.distributed.init_process_group"]
    (1, 0)
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = Path(__file__).with_name("device_arguments.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=loader)
    return dict(data[kind])
