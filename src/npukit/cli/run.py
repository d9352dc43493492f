"""npukit run"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.device import Device


class Compute(str, Enum):
    full = "full"
    shapes = "shapes"


def check_command(command: list[str], verb: str) -> None:
    """What follows the options must be a script or a module."""
    if command[0].startswith("-") and (command[0] != "-m" or len(command) < 2):
        raise NpukitError(f"There is no option {command[0]} before the script's name: see `npukit {verb} --help`.")
    if command[0] != "-m" and not Path(command[0]).exists():
        raise NpukitError(f"There is no script {command[0]}: name a Python file, or -m and a module.")


def run(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT|-m MODULE [ARGS]", show_default=False)],
    device: Annotated[
        Device, typer.Option(help="What to run on; auto is a real NPU, else CUDA, else the CPU.")
    ] = Device.auto,
    devices: Annotated[
        int, typer.Option(min=1, help="How many: with more than one, as many ranks under torchrun.")
    ] = 1,
    auto: Annotated[
        bool, typer.Option("--auto", help="Run CUDA code on an NPU without editing it; tells what was replaced.")
    ] = False,
    card: Annotated[str, typer.Option(help="sim: the kind of card; `npukit sim info` lists them.")] = DEFAULT_CARD,
    compute: Annotated[
        Compute, typer.Option(help="sim: with shapes nothing is computed; memory figures stay real.")
    ] = Compute.full,
    trace_ops: Annotated[Path | None, typer.Option(help="sim: write which operators ran to this file.")] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="sim: make something fail, e.g. oom@100; docs/simulated-npu.md lists all.")
    ] = None,
) -> None:
    """Run a Python script or module on a device, as one process or several ranks.

    Options after the script's name are the script's own.
    """
    from npukit.launch.device import choose
    from npukit.launch.run import run as launch

    check_command(command, "run")
    chosen = choose(device)
    environment = dict(os.environ)
    if chosen is Device.sim:
        from npukit.simulate import environment as simulated

        environment = simulated(devices, card, compute.value, fault or [], trace_ops)
    elif card != DEFAULT_CARD or compute is not Compute.full or trace_ops or fault:
        raise NpukitError("--card, --compute, --trace-ops and --fault are for the simulated NPU: add --device sim.")
    elif chosen is Device.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if auto and chosen not in (Device.npu, Device.sim):
        raise NpukitError("--auto runs CUDA code on an NPU, and here is none: add --device sim, or leave --auto away.")
    launch(command, environment, ranks=devices, auto=auto)
