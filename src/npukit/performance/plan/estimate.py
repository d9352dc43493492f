"""Estimate what a step computes, moves and exchanges, from the shapes of the model's weights alone."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from npukit.facts.planning import planning
from npukit.llm.config.options import Config
from npukit.llm.models.outline import Outline
from npukit.performance.plan.memory import (
    LOGITS_AT_ONCE,
    adapted,
    batch_patches,
    batch_tokens,
    low_bytes,
    row_length,
    stage_of,
    trained_parameters,
    trains_tower,
)
from npukit.performance.plan.work import PlannedWork

BACKWARD_OF_ATTENTION = 2.5  # times the forward pass: five products instead of two
OPERATORS_OF_A_LAYER = 30  # forward kernels of a layer on a card; twice as many backward
OPTIMIZER_BYTES = 110  # bytes moved per trained parameter: a dozen operators, each over all of it
LOGITS_BYTES = 60  # bytes moved per element of the logits
HEAD_BYTES = 14  # bytes moved per weight of a trained output layer, for each chunk of the logits
TRAFFIC = 2.4  # how often a layer's results are moved in a pass
# Bytes that an adapter moves for each number that its matrix takes and gives: its weights are fp32, so that autocast
# turns the input into fp32 and back, and its result is scaled and added in passes of its own.
ADAPTER_FORWARD, ADAPTER_BACKWARD = (14, 12), (22, 8)


def estimate(config: Config, model: Outline, devices: int) -> list[PlannedWork]:
    """The work of one optimizer step on one of `devices` devices, with rows of the maximum length."""
    training, sizes = config.training, model.sizes
    tokens = float(batch_tokens(config))
    trained, low = trained_parameters(config, model), low_bytes(config)
    passes = 2 if training.activation_checkpointing else 1  # forward through the layers
    inside = model.computed()
    head = float(sizes.vocabulary * sizes.hidden)
    of_trained = inside + head if config.tuning.method == "full" else float(trained)
    products = 2 * tokens * (inside * (passes + 1) + head * 2 + of_trained)
    scores = 2 * tokens * row_length(config) * sizes.queries * sizes.layers * (passes + BACKWARD_OF_ATTENTION)
    width = low * (12 * sizes.hidden + 6 * sizes.intermediate + 4 * sizes.keys)
    moved = tokens * sizes.layers * width * (passes + 2) * TRAFFIC
    moved += LOGITS_BYTES * tokens * sizes.vocabulary
    issued = 1 + 2 * planning().issued_by_autograd + (passes - 1) * planning().computed_again
    calls = OPERATORS_OF_A_LAYER * sizes.layers * issued
    if config.tuning.is_adapter:
        calls *= 2
        moved += tokens * sum(_moved_by_adapter(shape, passes) for shape in adapted(config, model))
    else:
        parts = ceil(tokens * sizes.vocabulary / LOGITS_AT_ONCE)
        moved += 6 * inside + HEAD_BYTES * head * parts  # the weights are cast in every pass
    times = training.accumulation
    return [
        PlannedWork("matmul", products * times, 0.0, 0),
        *_tower(config, model, passes, low),
        PlannedWork("attention", scores * times, 0.0, 0),
        PlannedWork("vector", 0.0, moved * times, calls * times),
        PlannedWork("vector", 0.0, trained * OPTIMIZER_BYTES / (devices if stage_of(config) else 1), 10),
        *_exchanged(config, model, devices, trained, low),
    ]


def _moved_by_adapter(shape: tuple[int, ...], passes: int) -> float:
    """The bytes that the adapter of a matrix (outputs, inputs) moves for a token, forward and backward."""
    outputs, inputs = shape[0], shape[1]
    of_input, of_output = (passes * there + back for there, back in zip(ADAPTER_FORWARD, ADAPTER_BACKWARD, strict=True))
    return float(of_input * inputs + of_output * outputs)


def _tower(config: Config, model: Outline, passes: int, low: int) -> Iterator[PlannedWork]:
    """The vision tower: its products, and what its layers move. Attention within a picture is negligible."""
    if model.tower is None:
        return
    tower, patches = model.tower, batch_patches(config, model) * config.training.accumulation
    passes = passes + 2 if trains_tower(config) else 1
    yield PlannedWork("matmul", 2 * patches * model.tower_parameters * passes, 0.0, 0)
    width = low * (12 * tower.hidden + 6 * tower.intermediate)
    calls = OPERATORS_OF_A_LAYER * tower.layers * passes * config.training.accumulation
    yield PlannedWork("vector", 0.0, patches * tower.layers * width * passes * TRAFFIC, calls if patches else 0)


def _exchanged(config: Config, model: Outline, devices: int, trained: int, low: int) -> Iterator[PlannedWork]:
    """A ring sends nearly all data once for a gather or a scatter, and twice for a reduction."""
    if devices == 1:
        return
    stage, part = stage_of(config), (devices - 1) / devices
    passes = 2 * config.training.accumulation
    if stage == 3:
        yield PlannedWork("collective", 0.0, part * model.parameters * low * passes, model.sizes.layers * passes)
        yield PlannedWork("collective", 0.0, part * trained * 4, model.sizes.layers)
    else:
        yield PlannedWork(
            "collective", 0.0, 2 * part * trained * (low if stage else 4), max(1, trained * 4 // (25 << 20))
        )
