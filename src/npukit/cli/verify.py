"""npukit verify"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated

import typer

from npukit.launch.device import Device


def verify(
    before: Annotated[Path, typer.Argument(help="The project as it was.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="The project after its migration.", show_default=False)],
    command: Annotated[list[str], typer.Argument(metavar="-- python SCRIPT [ARGS]", show_default=False)],
    device: Annotated[Device, typer.Option(help="What the migrated project runs on.")] = Device.sim,
    devices: Annotated[int, typer.Option(min=1, help="How many; both projects run with as many ranks.")] = 1,
    tolerance: Annotated[float, typer.Option(help="How far apart two losses may be, relative to the larger.")] = 1e-4,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    report: Annotated[Path | None, typer.Option(help="Write the migration's HTML report, with this in it.")] = None,
) -> None:
    """Run a project before and after its migration with the same seeds, and compare the losses that it prints.

    The original runs on CUDA or, where there is none, on the CPU. Ends with code 1 if the losses differ.
    """
    from npukit.verify import verify as run_both
    from npukit.verify.text import as_text

    result = run_both(
        before, after, command, device, devices, tolerance, tell=lambda line: print(f"npukit: {line}", file=sys.stderr)
    )
    if report:
        from npukit.report.migration_html import write_report
        from npukit.verify.migrated import migration_between

        write_report(migration_between(before, after), report, dataclasses.asdict(result))
    if json:
        from json import dumps

        print(dumps(dataclasses.asdict(result), indent=2))
    else:
        print(as_text(result))
    raise typer.Exit(0 if result.same else 1)
