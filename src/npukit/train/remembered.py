"""What a checkpoint remembers of the run that wrote it: what must stay, and what a person is told when it changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from npukit.train.options import TrainOptions

STEPS_PER_EPOCH = "steps_per_epoch"
MUST_STAY = ("batch_size", "accumulation", "seed", "shuffle", "optimizer", "sequence_parallel")
OF_NO_EFFECT = ("output", "resume", "plot", "loggers", "log_every")  # on what is learned


def must_stay(options: TrainOptions, world_size: int, steps_per_epoch: int | None) -> dict[str, Any]:
    """What a checkpoint and the run that goes on from it must have in common."""
    return {
        "world_size": world_size,
        "parallel": str(options.parallel),
        **{name: getattr(options, name) for name in MUST_STAY},
        STEPS_PER_EPOCH: steps_per_epoch,
    }


def may_change(options: TrainOptions) -> dict[str, Any]:
    """What a run that goes on may change, and a person wants to be told of."""
    return options.model_dump(exclude={*MUST_STAY, "parallel", *OF_NO_EFFECT})


def as_written(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values as JSON has them, so that they compare with those of a checkpoint."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return plain


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """What has another value now; what an older version did not write down is not compared.

    >>> list(differences({"epochs": 1.0, "seed": 1}, {"epochs": 2.0, "seed": 1, "new": True}))
    [('epochs', 1.0, 2.0)]
    """
    return ((name, then[name], value) for name, value in now.items() if name in then and then[name] != value)
