"""Plans a run before anything is loaded: its memory on each device, its steps and their time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from npukit.facts.planning import Range, device_of, planning, speed_of
from npukit.llm.config.options import Config
from npukit.llm.data.count import RowCount, count_rows
from npukit.llm.models.outline import look_at
from npukit.llm.tasks import task as tasks
from npukit.performance.plan.estimate import estimate
from npukit.performance.plan.memory import MemoryPlan, batch_tokens, memory, row_length, stage_of, trained_parameters
from npukit.performance.plan.sampling import phases
from npukit.performance.plan.walk import walk_config, walk_script
from npukit.performance.plan.walked import ACCUMULATION, Held, Walked
from npukit.performance.plan.work import PlannedWork, StepTime, step_time


@dataclass(frozen=True)
class Walk:
    """The result of walking through a step: bytes of one rank, from torch_npu's allocator on a simulated card."""

    peak: int
    reserved: int
    outside: int
    usable: float
    held: tuple[Held, ...]
    time: StepTime | None

    @property
    def total(self) -> int:
        """The memory that the card must have."""
        return self.reserved + self.outside

    def as_json(self) -> dict[str, Any]:
        """For programs; memory in bytes, time in seconds."""
        return asdict(self) | {"total": self.total, "fits": self.total <= self.usable}


@dataclass(frozen=True)
class Plan:
    """A run on `devices` devices in all; unknown values are None."""

    config: dict[str, Any]
    card: str  # "" for a device that is no Ascend card
    devices: int
    nodes: int
    parameters: int | None
    trained: int | None
    memory: MemoryPlan | None
    usable: float | None  # bytes of a card that a process can have
    rows: int | None
    rows_are_exact: bool
    image_tokens: float | None  # of a row, in the mean
    batches_per_epoch: int | None
    steps: int | None
    tokens_per_step: int
    time: StepTime | None
    walk: Walk | None = None
    phases: dict[str, Range] | None = None  # seconds of a step in sampling, rewards by models, and learning

    @property
    def fits(self) -> bool | None:
        """Whether a card has the memory; a walk is more accurate than the formula."""
        known = self.walk or self.memory
        return None if known is None or self.usable is None else known.total <= self.usable

    @property
    def days(self) -> Range | None:
        """The time of all steps."""
        time = (self.walk and self.walk.time) or self.time
        if time is None or self.steps is None:
            return None
        return time.step[0] * self.steps / 86400, time.step[1] * self.steps / 86400

    def as_json(self) -> dict[str, Any]:
        """For programs; memory in bytes, time in seconds."""
        total = {"total": self.memory.total} if self.memory else {}
        return asdict(self) | {
            "memory": asdict(self.memory) | total if self.memory else None,
            "walk": self.walk.as_json() if self.walk else None,
            "fits": self.fits,
            "days": self.days,
        }


def plan(config: Config, devices: int, card: str = "", nodes: int = 1) -> Plan:
    """Plan the training of `config` on `devices` devices of all `nodes`, from its files.

    >>> plan(config, devices=8, card="910B3").fits
    True
    """
    model = look_at(config.model)
    rows = count_rows(config)
    if model and model.vision and rows:
        model = replace(model, image_share=rows.image_tokens / max(1.0, rows.tokens))
    batches = _rows_of_batches(config, rows)
    if batches is not None and config.training.max_steps is None and tasks.of(config).samples:
        # An answer of each group is a row of the step, as often as it is learnt from.
        batches *= config.grpo.num_generations * config.grpo.num_iterations
    speed = speed_of(card) if card else None
    learning = estimate(config, model, devices) if model else []
    apart = phases(config, model, devices, learning) if model else {}
    work = [item for part in apart.values() for item in part] or learning
    times = {name: step_time(part, speed, nodes > 1) for name, part in apart.items()} if speed else {}
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
        image_tokens=rows.image_tokens if rows and model and model.vision else None,
        batches_per_epoch=batches,
        steps=_steps(config, batches, devices),
        tokens_per_step=batch_tokens(config) * config.training.accumulation * devices,
        time=step_time(work, speed, nodes > 1) if model and speed else None,
        phases={name: time.step for name, time in times.items() if time} or None,
    )


def _steps(config: Config, batches: int | None, devices: int) -> int | None:
    training = config.training
    if training.max_steps is not None or batches is None:
        return training.max_steps
    readers = max(1, devices // training.sequence_parallel)
    rows_per_step = training.batch_size * training.accumulation * readers
    return ceil(ceil(batches / rows_per_step) * training.epochs)


def walked(plan: Plan, config: Config) -> Plan:
    """The same plan with the result of a walk through a step on a simulated card."""
    seen = walk_config(config, plan.devices, plan.card, plan.devices // plan.nodes)
    walked_batches = min(config.training.accumulation, ACCUMULATION)
    work = seen.of_step(config.training.accumulation / walked_batches, gathers=stage_of(config) == 3)
    return replace(plan, walk=_with_time(seen, work, plan.card, plan.nodes))


def walk_of_script(command: Sequence[str], devices: int, card: str, nodes: int = 1, auto: bool = False) -> Walk:
    """Walk through the first steps of any script, as rank 0 of `devices` devices of all `nodes`.

    With `auto` CUDA code runs unchanged.

    >>> walk_of_script(["train.py", "--batch", "8"], devices=8, card="910B3").total
    """
    seen = walk_script(command, devices, card, devices // nodes, auto)
    return _with_time(seen, seen.of_step(), card, nodes)


def _with_time(seen: Walked, work: Sequence[PlannedWork], card: str, nodes: int) -> Walk:
    speed = speed_of(card)
    outside = planning().outside_mib * 2**20
    time = step_time(work, speed, nodes > 1) if speed else None
    return Walk(seen.peak, seen.reserved, outside, usable_memory(card), seen.held, time)


def usable_memory(card: str) -> float:
    """Bytes of a card that programs can use.

    >>> usable_memory("910B3") / 2**30
    60.875
    """
    return device_of(card).usable_mib * 2.0**20


def needed_and_usable(config: Config, devices: int, card: str) -> tuple[float, float] | None:
    """Bytes that each card needs, and has; None if the model is not known."""
    model = look_at(config.model)
    return (memory(config, model, devices).total, usable_memory(card)) if model else None


def _rows_of_batches(config: Config, rows: RowCount | None) -> int | None:
    """How many rows an epoch has once they are packed, and those for validation are set apart."""
    if rows is None:
        return None
    part = config.data.validation
    apart = 0 if isinstance(part, tuple) else int(rows.count * part) if part < 1 else int(part)
    left = max(1, rows.count - apart)
    packs = config.data.packing and tasks.of(config).packs
    return max(1, ceil(left * rows.tokens / row_length(config))) if packs else left
