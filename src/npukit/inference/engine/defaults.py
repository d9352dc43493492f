"""What the options of an engine leave open, chosen for the model and its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from npukit.inference.engine.cache import CacheShape, cache_dtype
from npukit.inference.engine.graphs import can_record
from npukit.launch.abilities import abilities
from npukit.llm.config.use import EngineOptions

T = TypeVar("T")


@dataclass(frozen=True)
class PassSettings:
    """How passes over the model are made up; the names are those of the options."""

    block_size: int
    max_num_batched_tokens: int
    max_num_mixed_tokens: int
    enable_prefix_caching: bool
    async_scheduling: bool
    graphs: bool
    compile: bool


def pass_settings(
    options: EngineOptions, model: Any, dtype: torch.dtype, is_paged: bool, has_states: bool = False
) -> PassSettings:
    """The settings that the options ask for, and else the best for the device. Without the paged cache there are
    neither graphs nor mixed passes, and no prefix is cached. Layers with states compute the tokens of a prompt together
    and know no prefix.

    >>> pass_settings(EngineOptions(), model, torch.bfloat16, is_paged=True).block_size
    128
    """
    has, is_eager = abilities(model.device), options.enforce_eager
    if is_paged and has.torch_npu:  # torch's own attention asks the device for lengths
        shape = CacheShape.of(model, cache_dtype(options.kv_cache_dtype, dtype, model.device))
        is_eager = is_eager or not shape.is_for_npu_kernel
    graphs = is_paged and not is_eager and can_record(model, dtype)
    mixed = _given_or(options.max_num_mixed_tokens, 1024 if graphs else 0)
    return PassSettings(
        block_size=_given_or(options.block_size, has.block_size),
        max_num_batched_tokens=_given_or(options.max_num_batched_tokens, 8192 if has.own_memory else 512),
        max_num_mixed_tokens=mixed if is_paged and not has_states else 0,
        enable_prefix_caching=is_paged and not has_states and options.enable_prefix_caching,
        async_scheduling=is_paged and _given_or(options.async_scheduling, has.own_memory),
        graphs=graphs,
        compile=not has_states and _given_or(options.compile, graphs and has.compiles),
    )


def _given_or(given: T | None, default: T) -> T:
    return default if given is None else given
