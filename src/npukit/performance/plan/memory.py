"""How much memory a run needs on each device, from the shapes of the model's weights alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from math import prod
from pathlib import Path

from npukit.facts.planning import planning
from npukit.llm.config.options import Config
from npukit.llm.models.outline import Outline, is_target

GIB = 2**30
LOGITS_AT_ONCE = 2**27  # elements of the logits that npukit's loss computes at a time
LOGITS_BYTES = 12  # of each: the product, its probabilities and their gradient in fp32
LIVE_PARAMETERS = 1e9  # that ZeRO-3 keeps gathered at most, unless its file says otherwise
STAGES = {"zero1": 1, "zero2": 2, "zero3": 3, "fsdp2": 3}


@dataclass(frozen=True)
class Memory:
    """Bytes on one device, part by part."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    communication: float
    outside: float  # of torch's allocator

    @property
    def total(self) -> float:
        return float(sum(getattr(self, part.name) for part in fields(self)))

    @property
    def allocated(self) -> float:
        """What torch's allocator hands out."""
        return self.total - self.outside


def row_length(config: Config) -> int:
    """Tokens in a row of a batch, if it is as long as it may be."""
    return (config.data.pack_length or config.data.cutoff) if config.data.packing else config.data.cutoff


def trained_parameters(config: Config, model: Outline) -> int:
    """How many parameters change."""
    tuning = config.tuning
    if tuning.method == "full":
        return model.parameters
    if tuning.method == "freeze":
        return model.of_layers(tuning.layers)
    targets = [shape for name, shape in model.linear().items() if is_target(name, tuning.targets)]
    saved = [
        prod(shape)
        for name, shape in model.shapes.items()
        if any(part in name.split(".") for part in tuning.modules_to_save)
    ]
    return sum((sum(shape) + tuning.dora) * tuning.rank for shape in targets) + sum(saved)


def stage_of(config: Config) -> int:
    """How much the devices share: 1 the optimizer, 2 the gradients too, 3 the weights too.

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
    """Bytes of a number in the precision that layers compute in; auto is 16 bits on every card."""
    return 4 if config.training.precision == "fp32" else 2


def memory(config: Config, model: Outline, devices: int) -> Memory:
    """An estimate of what training takes on each of `devices` devices, every row being of the maximum length."""
    training, tuning = config.training, config.tuning
    trained = trained_parameters(config, model)
    lora = tuning.method == "lora"
    low, stage = low_bytes(config), stage_of(config)
    kept = {"float32": 4, "bfloat16": 2, "float16": 2}.get(config.model.dtype, low if lora else 4)
    states = {"adamw": 8, "adam": 8, "sgd": 4 if training.momentum else 0}[training.optimizer]
    weights = model.parameters * kept + (trained * 4 if lora else 0)
    gradients, optimizer, communication = trained * 4.0, trained * states * 1.0, 0.0
    if stage and training.parallel != "fsdp2":  # DeepSpeed: all weights in 16 bits, a copy of the trained ones in 32
        weights, gradients = model.parameters * low + (trained * low if lora else 0), trained * low * 1.0
        optimizer += trained * 4
    if devices > 1:
        communication = _exchanged(config, model, trained, low)
    return Memory(
        weights=float(weights) / (devices if stage == 3 else 1),
        gradients=gradients / (devices if stage >= 2 else 1),
        optimizer=0.0 if training.offload else optimizer / (devices if stage >= 1 else 1),
        activations=activations(config, model, low),
        logits=_logits(config, model),
        communication=communication,
        outside=planning().outside_mib * 2.0**20,
    )


def _exchanged(config: Config, model: Outline, trained: int, low: int) -> float:
    """What lies ready for other ranks: copies of gradients, or the weights of layers that were just gathered."""
    parallel = config.training.parallel
    if parallel == "ddp":
        return trained * 4.0
    if parallel == "fsdp2":
        return 2.0 * model.of_layers(1) * low
    gathered = min(LIVE_PARAMETERS, model.parameters) * low if stage_of(config) == 3 else 0.0
    return gathered + min(trained, 5e8) * low


def activations(config: Config, model: Outline, low: int) -> float:
    """What the backward pass needs again. Attention keeps no matrix of scores; norms keep fp32."""
    tokens = config.training.batch_size * row_length(config)
    sizes = model.sizes
    of_a_layer = low * (7 * sizes.hidden + 2 * sizes.keys + 4 * sizes.intermediate) + 8 * sizes.hidden
    if config.training.activation_checkpointing:
        return float(tokens * (sizes.layers * sizes.hidden * low + of_a_layer))
    return float(tokens * sizes.layers * of_a_layer)


def _logits(config: Config, model: Outline) -> float:
    elements = config.training.batch_size * row_length(config) * model.sizes.vocabulary
    return float(min(LOGITS_AT_ONCE, elements) * LOGITS_BYTES)
