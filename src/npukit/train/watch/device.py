"""What the device says of itself."""

from __future__ import annotations

import platform
import resource

import torch

from npukit.facts.peak_flops import peak_flops
from npukit.launch.abilities import abilities
from npukit.launch.devices import is_simulated

GIB = 2**30


def device_name(device: torch.device) -> str:
    """What a person calls it, with "simulated" where it is.

    >>> device_name(torch.device("cpu"))
    'CPU (x86_64)'
    """
    if not abilities(device).own_memory:
        return f"CPU ({platform.machine()})"
    name = str(torch.get_device_module(device).get_device_name(device))
    return f"simulated {name}" if is_simulated() else name


def known_peak(device: torch.device) -> float | None:
    """Operations per second at best; None for a CPU, an unknown card, and a simulated one, whose speed says nothing."""
    return None if not abilities(device).own_memory or is_simulated() else peak_flops(device_name(device))


def peak_memory_gib(device: torch.device) -> float:
    """The most memory that tensors took so far: on the device, or, on a CPU, of the whole process."""
    if not abilities(device).own_memory:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    return float(torch.get_device_module(device).max_memory_allocated(device)) / GIB
