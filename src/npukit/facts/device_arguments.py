"""Functions that accept a device or a backend as a positional argument."""

from __future__ import annotations

import functools
from typing import Literal

from npukit.facts.data import load_yaml


@functools.cache
def positions(kind: Literal["device", "backend"]) -> dict[str, int]:
    """The position of the argument, by the full name of the function, or by `.NAME` of a method.

    >>> positions("device")["torch.load"], positions("backend")["torch.distributed.init_process_group"]
    (1, 0)
    """
    return dict(load_yaml("device_arguments.yaml")[kind])
