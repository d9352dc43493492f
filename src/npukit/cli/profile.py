"""npukit profile"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import CardOption, DeviceOption, DevicesOption, JsonOption, StepsOption, output_option
from npukit.cli.results import expect
from npukit.facts.cards import DEFAULT_CARD
from npukit.launch.devices import Wanted

DEFAULT_FOLDER = "profile"


def profile(
    command: Annotated[list[str], typer.Argument(metavar="[python] SCRIPT|-m MODULE [ARGS]", show_default=False)],
    steps: StepsOption = "10-12",
    profiler_level: Annotated[
        int,
        typer.Option(
            min=0, max=2, help="0, 1 with shapes, memory and communication, or 2 with call stacks as well (slower)."
        ),
    ] = 1,
    stop: Annotated[bool, typer.Option("--stop-script", help="Stop the script once the steps are recorded.")] = False,
    device: DeviceOption = Wanted.auto,
    devices: DevicesOption = None,
    card: CardOption = DEFAULT_CARD,
    output: Annotated[Path | None, output_option("Folder for the profile.", "FOLDER", DEFAULT_FOLDER)] = None,
    json: JsonOption = False,
) -> None:
    """Record a few steps of any training script for `npukit advise`.

    The script needs no change: torch_npu's profiler records on NPUs, torch's own on CUDA and the CPU.

    Examples:
        npukit profile -- python train.py  # steps 10 to 12, into the folder `profile`
        npukit profile --devices 8 --steps 20-22 --stop-script -- python train.py
        npukit advise profile  # then ask where the time goes
    """
    from npukit.cli.run import started
    from npukit.launch.devices import choose
    from npukit.performance.profile import Settings, steps_of
    from npukit.performance.profile import profile as record

    first, last = steps_of(steps)
    settings = Settings(first, last, profiler_level, str(output or DEFAULT_FOLDER), stop)
    chosen = choose(device, devices or 1, card)
    expect(started(command, chosen, first_step=first, last_step=last, output=settings.folder))
    record(command, chosen, settings)
