"""npukit run"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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

Compute = Literal["full", "shapes"]


def script_of(command: Sequence[str]) -> list[str]:
    """Return the script or module of a command with its arguments. The command may begin with `--` and `python`.

    >>> script_of(["python", "-m", "http.server", "8000"])
    ['-m', 'http.server', '8000']
    """
    words = list(command[1:] if command[:1] == ["--"] else command)
    if words and starts_python(words[0]):
        del words[0]
    if not words:
        raise NpukitError("Name the script to run, such as `python train.py`.")
    if words == ["-m"]:
        raise NpukitError("Name a module after -m, or a Python file.")
    if words[0] != "-m" and not Path(words[0]).exists():
        raise NpukitError(f"There is no script {words[0]}: name a Python file, or -m and a module.")
    return words


def starts_python(word: str) -> bool:
    """Return whether a word is a Python interpreter, such as python3.11 but not python_example.py."""
    return re.fullmatch(r"python[\d.]*", Path(word).name) is not None


def started(command: list[str], devices: Devices, **more: object) -> Callable[[], dict[str, object]]:
    """Return a function that describes a command for --json once it has ended."""
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
            show_default="full",
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

    command = script_of(command)
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
    environment = chosen.environment(None, compute, fault or [], trace_ops)
    expect(started(command, chosen, trace_ops=trace_ops))
    launch(command, environment, ranks=chosen.count, auto=auto)


def check_faults(faults: list[str] | None, devices: Devices) -> None:
    """Refuse --fault for devices that are not simulated."""
    if faults and not devices.simulated:
        raise NpukitError(f"--fault is for simulated NPUs, and this would run on {devices}: add --device sim.")


def check_auto(auto: bool, devices: Devices) -> None:
    """Refuse --auto without an NPU."""
    if auto and devices.kind != "npu":
        raise NpukitError(f"--auto runs CUDA code on an NPU, and this would run on {devices}: add --device sim.")
