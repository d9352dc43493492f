"""The options in a checkpoint: those that must not change on resuming, and those whose change is logged."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from npukit.train.options import TrainOptions

STEPS_PER_EPOCH = "steps_per_epoch"
MUST_STAY = ("batch_size", "accumulation", "seed", "shuffle", "optimizer", "sequence_parallel")
OF_NO_EFFECT = ("output", "resume", "plot", "loggers", "log_every")  # on the trained model


def must_stay(options: TrainOptions, world_size: int, steps_per_epoch: int | None) -> dict[str, Any]:
    """What a run that resumes from a checkpoint must have in common with it."""
    return {
        "world_size": world_size,
        "parallel": str(options.parallel),
        **{name: getattr(options, name) for name in MUST_STAY},
        STEPS_PER_EPOCH: steps_per_epoch,
    }


def may_change(options: TrainOptions) -> dict[str, Any]:
    """What a resumed run may change; changes are logged."""
    return options.model_dump(exclude={*MUST_STAY, "parallel", *OF_NO_EFFECT})


def as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as they are after a round trip through JSON, to compare them with those of a checkpoint."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """The values that have changed. Those that an older version did not write are not compared.

    >>> list(differences({"epochs": 1.0, "seed": 1}, {"epochs": 2.0, "seed": 1, "new": True}))
    [('epochs', 1.0, 2.0)]
    """
    return ((name, then[name], value) for name, value in now.items() if name in then and then[name] != value)
