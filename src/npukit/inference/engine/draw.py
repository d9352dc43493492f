"""Draw a token from each row of logits, as the row's request wants it.

Every draw depends on its own request alone: the randomness is a function of the request's seed, the position and the
token, so that an answer is the same whatever else is in the batch, on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from npukit.inference.engine.paged import to_device
from npukit.inference.engine.request import SamplingParams
from npukit.launch.abilities import abilities

P = ParamSpec("P")
T = TypeVar("T")


def remembered(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which returns its last result again if it is called with equal arguments: from step to step the
    host has the same settings of hundreds of rows, and lists of the same objects are quickly seen to be equal.
    """
    last: list[tuple[object, T]] = []

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if not (last and last[0][0] == (args, kwargs)):
            last[:] = [((args, kwargs), function(*args, **kwargs))]
        return last[0][1]

    return wrapper


def draw(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    """A token for each row of logits, [rows, words]: the likeliest where the settings are greedy, else a random one."""
    ways = _ways(settings)
    if len(set(ways)) == 1:
        return ways[0](logits, settings, positions)
    tokens = logits.new_empty(len(ways), dtype=torch.int64)
    for way in set(ways):
        rows = [row for row, other in enumerate(ways) if other is way]
        chosen = to_device(torch.tensor(rows), logits.device)
        tokens[chosen] = way(logits[chosen], [settings[row] for row in rows], [positions[row] for row in rows])
    return tokens


@remembered
def _ways(settings: Many[SamplingParams]) -> list[Way]:
    return [_way(sampling) for sampling in settings]


def _way(sampling: SamplingParams) -> Way:
    """Which of the functions below draws with these settings."""
    if sampling.is_greedy:
        return _likeliest
    if sampling.top_k:
        return _of_top_k
    return _of_top_p if sampling.top_p < 1 or sampling.min_p else _of_all


def _likeliest(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    return logits.argmax(-1)


def _of_top_k(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    """From the k likeliest tokens, of which top_p and min_p may leave out more."""
    numbers = Numbers.of(settings, positions, logits.device)
    largest = max(sampling.top_k for sampling in settings)
    kept = min(-(-largest // 16) * 16, logits.shape[1])  # a kernel is compiled once for all such sizes
    values, ids = logits.topk(kept, -1)
    if abilities(logits.device).compiles:
        return _fused(values, numbers, ids)
    values = values / numbers.temperature
    values = values.masked_fill(torch.arange(kept, device=logits.device) >= numbers.top_k, -torch.inf)
    return _of_sorted(values, ids, numbers)


def _of_top_p(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    """From as many of the likeliest tokens as make up top_p, or are as likely as min_p asks for."""
    numbers = Numbers.of(settings, positions, logits.device)
    if abilities(logits.device).compiles:
        return _fused(logits, numbers)
    return _of_sorted(*(logits / numbers.temperature).sort(-1, descending=True), numbers)


def _of_all(logits: Tensor, settings: Many[SamplingParams], positions: Many[int]) -> Tensor:
    numbers = Numbers.of(settings, positions, logits.device)
    if abilities(logits.device).compiles:
        return _fused(logits, numbers)
    ids = torch.arange(logits.shape[1], device=logits.device)[None]
    return (logits / numbers.temperature + gumbel(numbers.seeds, numbers.positions, ids)).argmax(-1)


Way = Callable[[Tensor, Many[SamplingParams], Many[int]], Tensor]


class Numbers(NamedTuple):
    """The settings on the device, as columns: one number for each row of logits."""

    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seeds: Tensor
    positions: Tensor

    @classmethod
    def of(cls, settings: Many[SamplingParams], positions: Many[int], device: torch.device) -> Numbers:
        """Copied to the device without waiting for it."""
        return cls(*[*_columns(settings, device), to_device(torch.tensor(positions)[:, None], device)])


@remembered
def _columns(settings: Many[SamplingParams], device: torch.device) -> list[Tensor]:
    """Temperature, top_p, min_p, top_k and seed."""
    real = [(sampling.temperature, sampling.top_p, sampling.min_p) for sampling in settings]
    whole = [(sampling.top_k, sampling.seed) for sampling in settings]
    tables = torch.tensor(real, dtype=torch.float32), torch.tensor(whole)
    return [column for table in tables for column in to_device(table.T[:, :, None].contiguous(), device)]


def _fused(logits: Tensor, numbers: Numbers, ids: Tensor | None = None) -> Tensor:
    from npukit.inference.engine import draw_cuda  # needs Triton

    return draw_cuda.draw(logits, numbers, ids)


def _of_sorted(values: Tensor, ids: Tensor, numbers: Numbers) -> Tensor:
    """From logits, divided by the temperature and sorted, the highest first; `ids` are their tokens."""
    probabilities = values.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    out = (before >= numbers.top_p) | (probabilities < numbers.min_p * probabilities[:, :1])
    out[:, 0] = False  # one is always left
    values = values.masked_fill(out, -torch.inf)
    best = (values + gumbel(numbers.seeds, numbers.positions, ids)).argmax(-1, keepdim=True)
    return ids.gather(1, best).squeeze(1)


def gumbel(seeds: Tensor, positions: Tensor, ids: Tensor) -> Tensor:
    """Gumbel noise for each token: the argmax of logits plus it is a draw from their distribution.

    A hash of seed, position and token takes the place of a generator's state.
    """
    mixed = _hash(_hash(seeds & 0xFFFFFFFF) ^ _hash((seeds >> 32) & 0xFFFFFFFF) ^ (positions * 0x9E3779B9))
    hashed = _hash(mixed ^ (ids * 0x85EBCA77))
    # 23 bits: neither 0 nor 1 comes out, whose logarithms are not finite.
    uniform = ((hashed >> 9).float() + 0.5) * 2.0**-23
    return -torch.log(-torch.log(uniform))


def _hash(numbers: Tensor) -> Tensor:
    """Mix 32 bits (the finishing steps of MurmurHash3), in int64 so that every device does it alike."""
    low = 0xFFFFFFFF
    numbers = numbers & low
    numbers = ((numbers ^ (numbers >> 16)) * 0x85EBCA6B) & low
    numbers = ((numbers ^ (numbers >> 13)) * 0xC2B2AE35) & low
    return numbers ^ (numbers >> 16)
