"""The memory and speed of the usual ways to train a model on one, four and eight cards."""

from __future__ import annotations

from dataclasses import dataclass

from npukit.errors import NpukitError
from npukit.facts.planning import Range
from npukit.llm.config.options import Config
from npukit.performance.plan.fit import Changes, changed
from npukit.performance.plan.job import plan

WAYS = (
    (1, "ddp"),
    (4, "ddp"),
    (4, "zero2"),
    (4, "zero3"),
    (4, "fsdp2"),
    (8, "ddp"),
    (8, "zero2"),
    (8, "zero3"),
    (8, "fsdp2"),
)


@dataclass(frozen=True)
class PlanRow:
    """One way to train."""

    method: str
    cards: int
    parallel: str
    bytes: float  # on each card
    fits: bool
    tokens_per_second: Range | None  # of all cards together


def make_table(config: Config, card: str) -> list[PlanRow]:
    """LoRA and full training of the configuration's model, with its other options.

    >>> make_table(config, "910B3")[0].cards
    1
    """
    rows = []
    for method in ("lora", "full"):
        for cards, parallel in WAYS:
            changes: Changes = {
                "tuning.method": method,
                "training.parallel": parallel,
                "training.offload": False,
            }
            planned = plan(changed(config, changes), cards, card)
            if planned.memory is None:
                path = config.model.path
                raise NpukitError(f"The sizes of {path} are unknown: give a folder that contains its config.json.")
            speed = planned.time.tokens_per_second(planned.tokens_per_step) if planned.time else None
            rows.append(PlanRow(method, cards, parallel, planned.memory.total, bool(planned.fits), speed))
    return rows
