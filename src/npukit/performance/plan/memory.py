"""Estimate a run's memory on each device from the shapes of the model's weights alone.

The coefficients come from walks through npukit's own training on an NPU (`plan --walk`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import ceil, prod
from pathlib import Path

from npukit.facts.planning import planning
from npukit.llm.config.options import Config
from npukit.llm.models.outline import Outline, is_target
from npukit.llm.tasks import task as tasks

GIB = 2**30
LOGITS_AT_ONCE = 2**27  # elements of the logits that npukit's loss computes at a time
LOGITS_BYTES = 26  # bytes of each: the product, and fp32 copies for the loss and the gradient
HEAD_BYTES = 16  # bytes per weight of a trained output layer, while its gradient is summed
STATISTICS_BYTES = 64  # bytes that attention keeps for each head of a token
LIVE_PARAMETERS = 1e9  # parameters that ZeRO-3 keeps gathered, unless its file says otherwise
UPDATED_AT_ONCE = 1e9  # parameters of a device that ZeRO-3 updates at a time (sub_group_size)
QUANTISED_BYTES = {"nf4": 0.5 + 4 / 64, "hqq": 0.5 + 8 / 64, "int8": 1.0}  # per weight, with its block's scale
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp2": 3}


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device, part by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    communication: float
    update: float  # in the optimizer's step, beyond the memory of activations and logits
    outside: float  # of torch's allocator
    sampling: float = 0.0  # while sampling answers, beyond all the others

    @property
    def total(self) -> float:
        return float(sum(getattr(self, part.name) for part in fields(self)))

    @property
    def range(self) -> tuple[float, float]:
        """The range of the total: other tools and settings keep less or more, and the allocator leaves gaps."""
        low, high = planning().memory_error
        return self.total * low, self.total * high

    @property
    def allocated(self) -> float:
        """The memory from torch's allocator."""
        return self.total - self.outside


def row_length(config: Config) -> int:
    """Tokens in a row of the maximum length."""
    if tasks.of(config).samples:
        return config.data.cutoff + config.grpo.max_completion_length
    return (config.data.pack_length or config.data.cutoff) if config.data.packing else config.data.cutoff


def token_cache(config: Config, model: Outline) -> float:
    """Bytes of a token in the key/value cache of sampling."""
    return float(cached_token(model, low_bytes(config)))


def cached_token(model: Outline, size: int) -> int:
    """Bytes of a token in a key/value cache whose numbers have `size` bytes; in 8 bits each head has a scale."""
    sizes, scale = model.sizes, 4 if size == 1 else 0
    layers = sizes.layers - sizes.state_layers
    if sizes.cached:
        return layers * (sizes.cached * size + 2 * scale)
    return 2 * layers * sizes.key_value_heads * (sizes.head * size + scale)


def states(model: Outline, size: int) -> int:
    """Bytes of a sequence in layers that keep a state of a fixed size, beside that cache."""
    sizes = model.sizes
    return sizes.state_layers * (sizes.state_inputs * size + sizes.state_memory * 4)


def batch_tokens(config: Config) -> int:
    """Tokens that go through the model on a device at once. A pair of answers counts as two rows."""
    rows = config.training.batch_size * tasks.of(config).rows_per_item
    return ceil(rows * row_length(config) / config.training.sequence_parallel)


def trained_parameters(config: Config, model: Outline) -> int:
    """The number of trainable parameters. Other adapters are counted like LoRA of the same rank."""
    tuning = config.tuning
    if tuning.method == "full":
        return sum(prod(shape) for name, shape in model.shapes.items() if not _is_frozen(config, model, name))
    if tuning.method == "freeze":
        return model.of_layers(tuning.new_layers or abs(tuning.layers))
    if tuning.method == "bottleneck":
        return model.sizes.layers * (2 * model.sizes.hidden * tuning.rank + model.sizes.hidden + tuning.rank)
    saved = [
        prod(shape)
        for name, shape in model.shapes.items()
        if any(part in name.split(".") for part in tuning.modules_to_save)
    ]
    return sum((sum(shape) + tuning.dora) * tuning.rank for shape in adapted(config, model)) + sum(saved)


def adapted(config: Config, model: Outline) -> list[tuple[int, ...]]:
    """The shapes of the matrices with adapters."""
    tuning = config.tuning
    if tuning.method == "bottleneck":
        return [(tuning.rank, model.sizes.hidden)] * model.sizes.layers
    return [
        shape
        for name, shape in model.linear().items()
        if is_target(name, tuning.targets) and not _is_frozen(config, model, name)
    ]


def _is_frozen(config: Config, model: Outline, name: str) -> bool:
    """Whether a weight belongs to a frozen part of a vision-language model."""
    return bool(getattr(config.tuning, f"freeze_{model.part_of(name)}", False))


def trains_tower(config: Config) -> bool:
    """Whether a model's tower or projector is trained, so that gradients pass through it."""
    return not (config.tuning.freeze_vision_tower and config.tuning.freeze_projector)


def batch_patches(config: Config, model: Outline) -> float:
    """Patches of pictures that go through the tower on a device at once."""
    return batch_tokens(config) * model.image_share * model.tower.patches_per_token if model.tower else 0.0


def stage_of(config: Config) -> int:
    """The ZeRO stage: 1 shards the optimizer, 2 also gradients, 3 also weights.

    >>> stage_of(Config(model={"path": "m"}, data={"train": "d"}, training={"parallel": "zero2"}))
    2
    """
    parallel = config.training.parallel
    if isinstance(parallel, Path):
        try:
            return int(json.loads(parallel.read_text(encoding="utf-8"))["zero_optimization"]["stage"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return STAGES.get(parallel, 0)


def low_bytes(config: Config) -> int:
    """Bytes per number in the precision that layers compute in; `auto` is 16 bits on every card."""
    return 4 if config.training.precision == "fp32" else 2


@dataclass(frozen=True)
class _Kept:
    """The bytes of weights, gradients and optimizer states on a device."""

    weights: float
    gradients: float
    optimizer: float
    trained: int  # the number of parameters with optimizer states
    width: int  # bytes of each of them


def memory(config: Config, model: Outline, devices: int) -> MemoryPlan:
    """Estimate the memory of training on each of `devices` devices, with rows of the maximum length."""
    low, stage, several = low_bytes(config), stage_of(config), devices > 1
    kept = _kept(config, model, devices)
    batch, logits = activations(config, model, low), _logits(config, model)
    batch += _tower_activations(config, model, low, batch + logits)
    if _loaded_bytes(config) > low and not stage:
        batch += low * sum(map(prod, model.linear().values()))  # autocast keeps copies until the loss has been computed
    update = _update(config, model, kept, devices)
    communication = _exchanged(config, model, kept.trained, low) if several else 0.0
    gathered = model.parameters * low if stage == 3 and several else 0
    sampling = gathered + row_length(config) * token_cache(config, model) if tasks.of(config).samples else 0.0
    return MemoryPlan(
        weights=kept.weights,
        gradients=kept.gradients,
        optimizer=kept.optimizer,
        activations=batch,
        logits=logits,
        communication=communication,
        update=max(0.0, update - batch - logits),
        outside=planning().outside_mib * 2.0**20,
        sampling=max(0.0, sampling - max(batch + logits, update)),
    )


def _kept(config: Config, model: Outline, devices: int) -> _Kept:
    """What a device keeps from step to step."""
    trained, lora = trained_parameters(config, model), config.tuning.is_adapter
    low, stage, size = low_bytes(config), stage_of(config), _loaded_bytes(config)
    weights = float(model.parameters * size + (trained * 4 if lora else 0))
    if kind := config.model.quantize:
        weights -= (size - QUANTISED_BYTES[kind]) * sum(map(prod, model.linear().values()))
    if config.tuning.turns == "badam":
        trained = ceil(trained / model.sizes.layers)  # only one layer at a time needs it
    # Gradients and optimizer states have the trained weights' dtype; adapters are always kept in fp32.
    width = 4 if lora else size
    gradients, optimizer = trained * float(width), trained * _state_bytes(config, model) * width / 4
    if _is_deepspeed(config):  # all weights in 16 bits, and a copy of the trained ones in 32 with their states
        weights, gradients = float(model.parameters * low + (trained * low if lora else 0)), float(trained * low)
        optimizer = trained * _state_bytes(config, model) + trained * 4
    weights /= devices if stage == 3 else 1
    gradients /= devices if stage >= 2 else 1
    optimizer = 0.0 if config.training.offload else optimizer / (devices if stage else 1)
    if tasks.of(config).samples and config.grpo.beta:
        weights += trained * float(width)  # a copy of the weights before training
    return _Kept(weights, gradients, optimizer, trained, width)


def _update(config: Config, model: Outline, kept: _Kept, devices: int) -> float:
    """What the optimizer needs while it updates the weights; nothing if the host does it."""
    if config.training.offload:
        return 0.0
    deepspeed, stage = _is_deepspeed(config), stage_of(config)
    # Two temporaries of Adam in fp32, one in 16 bits; DeepSpeed's fp32 gradients and one.
    temporaries = 1.0 if kept.width == 2 and not deepspeed else 2.0
    updated = kept.trained / (devices if stage else 1)
    if deepspeed and stage == 3:
        updated = min(updated, UPDATED_AT_ONCE)
    return temporaries * kept.width * updated + _head_gradient(config, model)


def _is_deepspeed(config: Config) -> bool:
    return stage_of(config) > 0 and config.training.parallel != "fsdp2"


def _loaded_bytes(config: Config) -> int:
    """Bytes per number of the weights as they are loaded."""
    automatic = low_bytes(config) if config.tuning.is_adapter else 4
    return {"float32": 4, "bfloat16": 2, "float16": 2}.get(config.model.dtype, automatic)


def _state_bytes(config: Config, model: Outline) -> float:
    """The bytes of an optimizer's state for one parameter."""
    training = config.training
    if training.optimizer in ("galore", "apollo"):
        rank = float(training.optimizer_options.get("rank", 128))
        return 8.0 * min(1.0, rank / model.sizes.hidden)
    known = {"adamw": 8, "adam": 8, "sgd": 4 if training.momentum else 0, "muon": 4, "adafactor": 0, "adam_mini": 4}
    return float({**known, "muonclip": 4, "adamw_8bit": 2}[training.optimizer])


def _exchanged(config: Config, model: Outline, trained: int, low: int) -> float:
    """Buffers for communication: copies of gradients, or gathered weights of layers."""
    parallel = config.training.parallel
    if parallel == "ddp":
        return trained * 4.0
    if parallel == "fsdp2":  # two layers, or the parameters outside layers, which stay gathered for the loss
        return float(max(2 * model.of_layers(1), model.parameters - model.of_layers(model.sizes.layers)) * low)
    gathered = min(LIVE_PARAMETERS, model.parameters) * low if stage_of(config) == 3 else 0.0
    return gathered + min(trained, 5e8) * low


def activations(config: Config, model: Outline, low: int) -> float:
    """The activations for the backward pass. Attention keeps no scores; an adapter keeps its own input."""
    tokens = batch_tokens(config)
    sizes = model.sizes
    gated = any("gate" in name for name in model.shapes)
    width = 7.5 * sizes.hidden + 2 * sizes.keys + (3 if gated else 2) * sizes.intermediate
    if config.tuning.is_adapter:
        width += sum(shape[1] for shape in adapted(config, model)) / sizes.layers
    of_a_layer = low * width + STATISTICS_BYTES * sizes.heads
    if not config.training.activation_checkpointing:
        return float(tokens * sizes.layers * of_a_layer)
    # One layer at a time is recomputed, after the logits have been freed.
    again = max(0.0, 1.5 * tokens * of_a_layer - _logits(config, model))
    return float(tokens * sizes.layers * sizes.hidden * low) + again


def _tower_activations(config: Config, model: Outline, low: int, others: float) -> float:
    """Pixels, and what the tower keeps of them. A frozen tower keeps nothing while the language model runs, and adds to
    the `others` only if one of its layers is larger.
    """
    if model.tower is None:
        return 0.0
    patches, tower = batch_patches(config, model), model.tower
    pixels = 4.0 * patches * tower.patch
    of_a_layer = patches * (low * (7.5 * tower.hidden + 3 * tower.intermediate) + STATISTICS_BYTES * tower.heads)
    if not trains_tower(config):
        return pixels + max(0.0, of_a_layer - others)
    if config.training.activation_checkpointing:
        return pixels + patches * tower.layers * tower.hidden * low + max(0.0, 1.5 * of_a_layer - others)
    return pixels + tower.layers * of_a_layer


def _logits(config: Config, model: Outline) -> float:
    rows = batch_tokens(config)
    chunks = ceil(rows * model.sizes.vocabulary / LOGITS_AT_ONCE)
    elements = ceil(rows / chunks) * model.sizes.vocabulary
    head = model.sizes.vocabulary * model.sizes.hidden if config.tuning.method == "full" else 0
    return float(max(elements * LOGITS_BYTES + head * 4, elements * 4 + head * HEAD_BYTES))


def _head_gradient(config: Config, model: Outline) -> float:
    """The output layer's gradient, which lives until the next step."""
    return 4.0 * model.sizes.vocabulary * model.sizes.hidden if config.tuning.method == "full" else 0.0
