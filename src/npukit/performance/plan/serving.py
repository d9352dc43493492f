"""Plans the memory of serving a model with npukit's engine: the weights, and how much the cache holds beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil, prod
from typing import Any

from npukit.errors import NpukitError
from npukit.facts.planning import device_of
from npukit.launch.abilities import KINDS
from npukit.llm.config.use import Use
from npukit.llm.models.outline import UNLIMITED, Outline, look_at
from npukit.performance.plan.memory import cached_token, states

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # auto is 16 bits on every card


@dataclass(frozen=True)
class ServingPlan:
    """Bytes on the card, and what the cache of keys and values holds."""

    card: str
    parameters: int
    weights: float
    cache: int
    states: int  # of layers that keep one of a fixed size for each sequence, instead of keys and values
    cached_token: int  # bytes
    cached_tokens: int
    max_model_len: int  # tokens of a prompt with its answer
    max_num_seqs: int
    usable: float  # bytes of the card that a process can have

    @property
    def total(self) -> float:
        return self.weights + self.cache + self.states

    @property
    def full_length(self) -> int:
        """How many of the longest answers the cache holds at the same time."""
        return min(self.max_num_seqs, self.cached_tokens // self.max_model_len)

    @property
    def fits(self) -> bool:
        """Whether the engine starts, with sequences of the wanted length."""
        return self.full_length > 0

    def as_json(self) -> dict[str, Any]:
        """For programs; memory in bytes."""
        return asdict(self) | {"total": self.total, "full_length": self.full_length, "fits": self.fits}


def plan_serving(use: Use, card: str) -> ServingPlan:
    """Plan serving a model on one card, as the engine divides its memory.

    >>> plan_serving(Use(model={"path": "Qwen/Qwen2-7B-Instruct"}), "910B3").cached_tokens
    704512
    """
    model, engine, device = look_at(use.model), use.engine, device_of(card)
    if model is None or not model.is_paged:
        raise NpukitError(
            f"The memory of {use.model.path} is not known: it is not in a local folder, belongs to a family that "
            "npukit does not know, or has no paged cache."
        )
    low = BYTES.get(use.model.dtype, 2)
    weights = _weights(model, low, engine.quantization)
    token = cached_token(model, 1 if engine.kv_cache_dtype != "auto" else low)
    size = engine.block_size or KINDS["cuda" if device.is_gpu else "npu"].block_size
    longest = min(filter(None, (engine.max_model_len, model.max_length)), default=UNLIMITED)
    budget = device.usable_mib * 2.0**20 - (1 - engine.gpu_memory_utilization) * device.memory_mib * 2.0**20 - weights
    row, seqs = states(model, low), engine.max_num_seqs
    if row:  # they get half of the memory at most, and one row is for padding
        seqs = min(seqs, max(0, int(budget / 2 / row) - 1))
    kept = (seqs + 1) * row
    useful = seqs * ceil(longest / size) + 1
    blocks = engine.num_blocks or min(useful, max(0, int((budget - kept) // (token * size))))
    return ServingPlan(
        card=device.name,
        parameters=model.parameters,
        weights=weights,
        cache=blocks * size * token,
        states=kept,
        cached_token=token,
        cached_tokens=max(0, blocks - 1) * size,  # one block is for padding
        max_model_len=longest,
        max_num_seqs=seqs,
        usable=device.usable_mib * 2.0**20,
    )


def _weights(model: Outline, low: int, quantization: str | None) -> float:
    """Bytes of the weights; w8a8 has a byte for each weight of a layer's matrices, and a scale for each output."""
    whole = float(model.parameters * low)
    if quantization is None:
        return whole
    return whole + sum(4 * shape[0] - (low - 1) * prod(shape) for shape in model.linear().values())
