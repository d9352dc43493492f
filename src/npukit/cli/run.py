"""npukit run"""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, DevicesOption
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
    device: DeviceOption = Device.auto,
    devices: DevicesOption = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Run CUDA code on an NPU unchanged, and list what was replaced.")
    ] = False,
    card: CardOption = DEFAULT_CARD,
    compute: Annotated[
        Compute, typer.Option(help="Simulated NPU: with shapes, nothing is computed but memory is counted.")
    ] = Compute.full,
    trace_ops: Annotated[
        Path | None, typer.Option(show_default=False, help="Simulated NPU: write the operators that ran to this file.")
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            show_default=False, help="Simulated NPU: make something fail, such as oom@100 (see docs/simulated-npu.md)."
        ),
    ] = None,
) -> None:
    """Run a Python script or module on any device, simulated or not.

    Options after the script's name belong to the script.
    """
    from npukit.launch.device import choose
    from npukit.launch.run import run as launch

    check_command(command, "run")
    chosen = choose(device)
    environment = dict(os.environ)
    if chosen is Device.sim:
        from npukit.simulate import environment as simulated

        environment = simulated(devices or 1, card, compute.value, fault or [], trace_ops)
    elif card != DEFAULT_CARD or compute is not Compute.full or trace_ops or fault:
        raise NpukitError("--card, --compute, --trace-ops and --fault are for the simulated NPU: add --device sim.")
    elif chosen is Device.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if auto and chosen not in (Device.npu, Device.sim):
        raise NpukitError("--auto runs CUDA code on an NPU, and here is none: add --device sim, or leave --auto away.")
    launch(command, environment, ranks=devices or 1, auto=auto)
