"""npukit run"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from npukit.cli.help import SIMULATED
from npukit.cli.options import (
    AutoOption,
    CardOption,
    DeviceOption,
    DevicesOption,
    FaultOption,
    JsonOption,
    TorchNpuOption,
)
from npukit.cli.results import expect, release_stdout
from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

if TYPE_CHECKING:
    from npukit.launch.devices import Devices


class Compute(str, Enum):
    full = "full"
    shapes = "shapes"


def check_command(command: list[str]) -> None:
    """What follows the options must be a script or a module."""
    if command == ["-m"]:
        raise NpukitError("Name a module after -m, or a Python file.")
    if command[0] != "-m" and not Path(command[0]).exists():
        raise NpukitError(f"There is no script {command[0]}: name a Python file, or -m and a module.")


def started(command: list[str], devices: Devices, **more: object) -> Callable[[], dict[str, object]]:
    """What is known of a command that was run once it has ended, for --json."""
    begin = time.monotonic()
    about = {"command": command, "device": devices.kind, "devices": devices.count, "simulated": devices.simulated}
    return lambda: {**about, **more, "seconds": round(time.monotonic() - begin, 3)}


def run(
    command: Annotated[list[str], typer.Argument(metavar="SCRIPT|-m MODULE [ARGS]", show_default=False)],
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    auto: AutoOption = False,
    card: CardOption = DEFAULT_CARD,
    compute: Annotated[
        Compute | None,
        typer.Option(
            show_default=Compute.full.value,
            rich_help_panel=SIMULATED,
            help="With shapes, nothing is computed but memory is counted.",
        ),
    ] = None,
    trace_ops: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            rich_help_panel=SIMULATED,
            help="Write the operators that ran to this file, for `npukit analyze --trace-ops`.",
        ),
    ] = None,
    fault: FaultOption = None,
    torch_npu: TorchNpuOption = None,
    json: JsonOption = False,
) -> None:
    """Run a Python script or module on any device, simulated or not.

    A shell script, which may call torchrun, gets the devices as well. Options after the script's name belong to it.

    Examples:
        npukit run --device sim train.py  # on a simulated NPU
        npukit run --device sim --auto --devices 2 train.py --epochs 3  # CUDA code, unchanged, as two ranks
        npukit run --device sim --trace-ops ops.json train.py  # which operators ran
    """
    from npukit.launch.commands import is_shell_script
    from npukit.launch.devices import choose
    from npukit.launch.run import run as launch

    check_command(command)
    if auto and is_shell_script(Path(command[0])):
        raise NpukitError(
            "--auto changes Python programs, not those that a shell script starts: put it into the script."
        )
    chosen = choose(device, devices or 1, card)
    if (card != DEFAULT_CARD and device is not Wanted.sim) or (
        (compute or trace_ops or fault) and not chosen.simulated
    ):
        raise NpukitError("--card, --compute, --trace-ops and --fault configure simulated NPUs: add --device sim.")
    if torch_npu:
        release_stdout()
        chosen.start_again_with(torch_npu)
    check_auto(auto, chosen)
    environment = chosen.environment(None, compute.value if compute else None, fault or [], trace_ops)
    expect(started(command, chosen, trace_ops=trace_ops))
    launch(command, environment, ranks=chosen.count, auto=auto)


def check_faults(faults: list[str] | None, devices: Devices) -> None:
    """Faults are simulated NPUs'."""
    if faults and not devices.simulated:
        raise NpukitError(f"--fault is for simulated NPUs, and this would run on {devices}: add --device sim.")


def check_auto(auto: bool, devices: Devices) -> None:
    """--auto turns CUDA into NPU, and needs one."""
    if auto and devices.kind != "npu":
        raise NpukitError(f"--auto runs CUDA code on an NPU, and this would run on {devices}: add --device sim.")
