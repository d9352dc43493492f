"""The groups of checks, in the order in which a port needs them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from npukit.launch.abilities import abilities
from npukit.selftest.check import DeviceCheck


def checks_of(group: str, device: torch.device) -> list[DeviceCheck]:
    """The checks of a group that apply to a device.

    >>> checks_of("training", torch.device("cpu"))[0].name
    'language model float32'
    """
    from npukit.selftest import models, operators

    if group == "collectives":
        return collectives(device)
    if group == "operators":
        return list(operators.operators()) if abilities(device).torch_npu else []
    by_group = {
        "formulas": operators.formulas,
        "training": models.training,
        "serving": models.serving,
        "precision": models.precision,
    }
    return list(by_group[group]())


def collectives(device: torch.device) -> list[DeviceCheck]:
    """The collectives between the ranks of this job, and a training run that uses them."""
    from npukit.selftest.collectives import COLLECTIVES, CollectiveCheck, RankJob
    from npukit.selftest.models import parallel_training

    job = RankJob(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), device)

    def run(collective: CollectiveCheck, _: torch.device) -> Sequence[Tensor]:
        collective.run(job)
        return []

    supported = [collective for collective in COLLECTIVES if collective.runs_on(device)]
    checks = [DeviceCheck(collective.name, partial(run, collective)) for collective in supported]
    return [*checks, parallel_training(job.ranks)]
