"""npukit profile"""

from __future__ import annotations

from typing import Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, DevicesOption, OutputOption
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

DEFAULT_FOLDER = "profile"


def profile(
    command: Annotated[list[str], typer.Argument(metavar="[python] SCRIPT|-m MODULE [ARGS]", show_default=False)],
    steps: Annotated[str, typer.Option(help="Optimizer steps to record, counted from 1.")] = "10-12",
    level: Annotated[
        int, typer.Option(min=0, max=2, help="1 adds shapes, memory and communication, 2 also call stacks (slower).")
    ] = 1,
    output: OutputOption = None,
    stop: Annotated[bool, typer.Option("--stop", help="End the script when the steps are recorded.")] = False,
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
) -> None:
    """Record a few steps of any training script for `npukit advise`.

    The script needs no change: torch_npu's profiler records on NPUs, torch's own on CUDA and the CPU. The result is a
    folder, `profile` unless --output names another.
    """
    from npukit.launch.devices import choose
    from npukit.performance.profile import Settings, steps_of
    from npukit.performance.profile import profile as record

    first, last = steps_of(steps)
    record(
        command, choose(device, devices or 1, card), Settings(first, last, level, str(output or DEFAULT_FOLDER), stop)
    )
