"""Finds the cheapest change to a configuration that makes it fit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from npukit.errors import NpukitError
from npukit.llm.config.options import Config
from npukit.performance.plan.job import Plan, plan, walked

Kind = Literal["same training", "only an adapter", "shorter rows", "more cards"]
Changes = dict[str, Any]  # new values by key, as in training.batch_size
MAX_CARDS = 1024
WALKS = 4  # candidates to walk through


@dataclass(frozen=True)
class Fit:
    """A configuration that fits: its changes and its needs."""

    kind: Kind
    changes: Changes
    devices: int
    config: Config
    plan: Plan

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"kind": self.kind, "changes": self.changes, "devices": self.devices, "plan": self.plan.as_json()}


def find_fit(config: Config, devices: int, card: str, nodes: int = 1, walk: bool = False) -> Fit:
    """The fastest change with which `config` fits on `devices` cards, and trains on as many rows in a step as before.

    Only if there is none, it is an adapter instead of all weights, then shorter rows, then more cards. With `walk` a
    candidate must also fit when it is walked through.

    >>> find_fit(config, devices=1, card="910B3").changes
    {'training.activation_checkpointing': True}
    """
    tried = 0
    for kind, base, count in _widening(config, devices):
        candidates = [(plan(changed(base, changes), count, card, nodes), changes) for changes in _same(base, count)]
        fitting = [(candidate, changes) for candidate, changes in candidates if candidate.fits]
        for candidate, changes in sorted(fitting, key=lambda pair: _cost(*pair)):
            made = changed(base, changes)
            if walk:
                tried += 1
                candidate = walked(candidate, made)
            if candidate.fits:
                return Fit(kind, _difference(config, made), count, made, candidate)
            if tried == WALKS:
                raise NpukitError(f"None of the {WALKS} changes that were tried makes this fit.")
    raise NpukitError(f"No change was found that makes this fit on up to {MAX_CARDS} {card}.")


def _cost(candidate: Plan, changes: Changes) -> tuple[bool, float, int]:
    """The cost of a candidate: work on the host first, then time, then the number of changes."""
    time = candidate.time.step[1] / candidate.tokens_per_step if candidate.time else 0.0
    return "training.offload" in changes, time, len(changes)


def _same(config: Config, devices: int) -> Iterator[Changes]:
    """Other settings for the same training."""
    training = config.training
    shared: list[Changes] = [{}]
    if devices > 1:
        shared += [{"training.parallel": parallel} for parallel in ("zero2", "zero3", "fsdp2")]
        shared += [{"training.parallel": "zero3", "training.offload": True}]
    checkpointing: list[Changes] = [{}]
    if not training.activation_checkpointing:
        checkpointing += [{"training.activation_checkpointing": True}]
    sizes: list[Changes] = [{}]
    size = training.batch_size
    while size % 2 == 0:
        size //= 2
        times = training.batch_size // size
        sizes.append({"training.batch_size": size, "training.accumulation": training.accumulation * times})
    for parts in itertools.product(shared, checkpointing, sizes):
        yield {key: value for part in parts for key, value in part.items()}


def _widening(config: Config, devices: int) -> Iterator[tuple[Kind, Config, int]]:
    """The starting points, the most faithful first."""
    yield "same training", config, devices
    if config.tuning.method == "full" and not config.model.from_config:
        yield "only an adapter", changed(config, {"tuning.method": "lora"}), devices
    length = config.data.cutoff
    while length > 512:
        length //= 2
        yield "shorter rows", changed(config, {"data.cutoff": length, "data.pack_length": None}), devices
    while devices < MAX_CARDS:
        devices *= 2
        yield "more cards", config, devices


def changed(config: Config, changes: Changes) -> Config:
    """The configuration with other values for some keys.

    >>> changed(config, {"training.batch_size": 4}).training.batch_size
    4
    """
    data = config.model_dump()
    for key, value in changes.items():
        section, _, name = key.partition(".")
        data[section][name] = value
    return Config.model_validate(data)


def _difference(before: Config, after: Config) -> Changes:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return {
        f"{section}.{name}": value
        for section, values in new.items()
        if isinstance(values, dict)
        for name, value in values.items()
        if old[section][name] != value
    }
