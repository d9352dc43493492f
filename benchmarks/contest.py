"""Contestants that each run in a process of their own, one after the other."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

Contestant = Callable[[], Any]


def result(tokens_per_second: float, **more: float) -> dict[str, float]:
    """What a contestant reached, with the memory that its process took at most."""
    import torch

    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return {"tokens_per_second": tokens_per_second, "peak_gib": peak, **more}


def timed(work: Callable[[], Any], warm: int, runs: int) -> float:
    """Seconds of one run on the GPU."""
    import torch

    for _ in range(warm):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(runs):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / runs


def results(contestants: Mapping[str, Contestant]) -> Iterator[tuple[str, Any]]:
    """What each of these functions of a module returns; a dictionary with `failed` where it raised or was killed."""
    for name, contestant in contestants.items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            try:
                yield name, pool.submit(_silently, contestant).result()
            except Exception as error:
                yield name, {"failed": f"{type(error).__name__}: {error}"}


def _silently(contestant: Contestant) -> Any:
    """Run a contestant without what it prints: the table stays whole."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    return contestant()
