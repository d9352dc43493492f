"""Random numbers that do not depend on others."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


class Randomness:
    """A context with random numbers of its own, from `seed`. Entered again, it continues where it was left."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._inside: tuple[Any, ...] | None = None
        self._outside: tuple[Any, ...] = ()

    def __enter__(self) -> None:
        self._outside = _states()
        if self._inside is not None:
            _set_states(*self._inside)
            return
        random.seed(self._seed)
        np.random.seed(self._seed % 2**32)
        torch.default_generator.manual_seed(self._seed)  # torch.manual_seed would touch the devices' too

    def __exit__(self, *_: object) -> None:
        self._inside = _states()
        _set_states(*self._outside)


def _states() -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), torch.default_generator.get_state()


def _set_states(pythons: Any, numpys: Any, torchs: Any) -> None:
    random.setstate(pythons)
    np.random.set_state(numpys)
    torch.default_generator.set_state(torchs)


def seed_of(*place: int) -> int:
    """A seed for a place in the data, different for every place."""
    return int.from_bytes(hashlib.blake2b(repr(place).encode(), digest_size=7).digest(), "big")
