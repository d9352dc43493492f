"""npukit verify"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import DeviceOption, DevicesOption, JsonOption, report_option
from npukit.cli.results import show
from npukit.launch.devices import Wanted
from npukit.report.language import translated
from npukit.report.terminal import printable, say


def verify(
    before: Annotated[Path, typer.Argument(help="Project before the migration.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="Project after the migration.", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND", show_default=False)],
    device: DeviceOption = Wanted.sim,
    devices: DevicesOption = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest relative difference between two losses.", show_default="1e-4, more in half precision"
        ),
    ] = None,
    report: Annotated[Path | None, report_option(".html")] = None,
    json: JsonOption = False,
) -> None:
    """Check that a project computes the same after its migration.

    Both run with the same seeds: the original on CUDA or, where there is none, on the CPU, and the migrated project on
    --device. The command is `python SCRIPT`, a launcher such as torchrun, or a shell script. It compares the losses and
    what the models compute. Exits with code 1 if something differs.

    Examples:
        npukit verify project migrated -- python train.py --steps 20
        npukit verify project migrated --devices 2 --report report.html -- bash train.sh
        npukit verify project migrated --device npu --json -- torchrun --nproc-per-node 8 train.py
    """
    from npukit.verify import verify as run_both
    from npukit.verify.text import as_page, as_text

    result = run_both(before, after, command, device, devices, tolerance, log=say)
    if report:
        from npukit.report.migration_html import write_report
        from npukit.verify.migrated import migration_between

        write_report(migration_between(before, after), report, as_page(result))
    show(result, lambda: translated(printable(as_text(result))), json, 0 if result.same else 1)
