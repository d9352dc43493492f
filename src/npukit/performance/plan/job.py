"""What a run would do, before anything is loaded: the memory it needs on each device, its steps and their time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

from npukit.facts.cards import card as find_card
from npukit.facts.planning import Range, planning, speed_of
from npukit.llm.config.options import Config
from npukit.llm.data.count import Rows, count_rows
from npukit.llm.models.outline import look_at
from npukit.performance.plan.estimate import estimate
from npukit.performance.plan.memory import Memory, memory, row_length, trained_parameters
from npukit.performance.plan.work import StepTime, step_time


@dataclass(frozen=True)
class Plan:
    """A run on `devices` devices in all; what is not known is None."""

    config: dict[str, Any]
    card: str  # "" for a device that is no Ascend card
    devices: int
    nodes: int
    parameters: int | None
    trained: int | None
    memory: Memory | None
    usable: float | None  # bytes of a card that a process can have
    rows: int | None
    rows_are_exact: bool
    batches_per_epoch: int | None
    steps: int | None
    tokens_per_step: int
    time: StepTime | None

    @property
    def fits(self) -> bool | None:
        """Whether a card has the memory."""
        return None if self.memory is None or self.usable is None else self.memory.total <= self.usable

    @property
    def days(self) -> Range | None:
        """How long all steps take."""
        if self.time is None or self.steps is None:
            return None
        return self.time.step[0] * self.steps / 86400, self.time.step[1] * self.steps / 86400

    def as_json(self) -> dict[str, Any]:
        """For programs; memory in bytes, time in seconds."""
        total = {"total": self.memory.total} if self.memory else {}
        return asdict(self) | {
            "memory": asdict(self.memory) | total if self.memory else None,
            "fits": self.fits,
            "days": self.days,
        }


def plan(config: Config, devices: int, card: str = "", nodes: int = 1) -> Plan:
    """Look at the files that `config` names and work out what training on `devices` devices of all `nodes` takes.

    >>> plan(config, devices=8, card="910B3").fits
    True
    """
    model = look_at(config.model)
    rows = count_rows(config)
    batches = _rows_of_batches(config, rows)
    rows_per_step = config.training.batch_size * config.training.accumulation * devices
    steps = config.training.max_steps
    if steps is None and batches is not None:
        steps = ceil(ceil(batches / rows_per_step) * config.training.epochs)
    speed = speed_of(card) if card else None
    return Plan(
        config=config.model_dump(mode="json"),
        card=card,
        devices=devices,
        nodes=nodes,
        parameters=model.parameters if model else None,
        trained=trained_parameters(config, model) if model else None,
        memory=memory(config, model, devices) if model else None,
        usable=usable_memory(card) if card else None,
        rows=rows.count if rows else None,
        rows_are_exact=bool(rows and rows.exact),
        batches_per_epoch=batches,
        steps=steps,
        tokens_per_step=rows_per_step * row_length(config),
        time=step_time(estimate(config, model, devices), speed, nodes > 1) if model and speed else None,
    )


def usable_memory(card: str) -> float:
    """Bytes of a card that are left for programs.

    >>> usable_memory("910B3") / 2**30
    60.875
    """
    return (find_card(card).memory_mib - planning().idle_mib) * 2.0**20


def needed_and_usable(config: Config, devices: int, card: str) -> tuple[float, float] | None:
    """Bytes that each card must have, and has; None where the model is not known."""
    model = look_at(config.model)
    return (memory(config, model, devices).total, usable_memory(card)) if model else None


def _rows_of_batches(config: Config, rows: Rows | None) -> int | None:
    """How many rows an epoch has once they are packed, and those for validation are set apart."""
    if rows is None:
        return None
    part = config.data.validation
    apart = 0 if isinstance(part, tuple) else int(rows.count * part) if part < 1 else int(part)
    left = max(1, rows.count - apart)
    return max(1, ceil(left * rows.tokens / row_length(config))) if config.data.packing else left
