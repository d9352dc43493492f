"""npukit doctor"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.help import OUTPUT
from npukit.cli.options import JsonOption, TargetOption, file_place
from npukit.cli.results import show
from npukit.report.terminal import has_color
from npukit.report.text import terminal_columns
from npukit.report.writing import write_text


def doctor(
    target: TargetOption = None,
    fix_script: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=file_place,
            show_default=False,
            rich_help_panel=OUTPUT,
            help="Also write the commands that fix the findings to this shell script.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Check whether this machine can train on NPUs.

    If it cannot, the report says what to fix first. Exits with code 0 if it can and 1 if it cannot.

    Examples:
        npukit doctor  # this machine, with what is installed
        npukit doctor --target torch_npu=2.7,card=910B3  # would these versions work here?
        npukit doctor --fix-script fix.sh  # then read it, and: source fix.sh
    """
    from npukit.doctor.data import as_data
    from npukit.doctor.diagnosis_text import as_text
    from npukit.doctor.diagnosis_text import fix_script as script_of
    from npukit.doctor.examine import examine

    diagnosis = examine(target=target)
    if fix_script:
        write_text(fix_script, script_of(diagnosis))
    show(
        as_data(diagnosis),
        lambda: as_text(diagnosis, has_color(), terminal_columns()),
        json,
        0 if diagnosis.good else 1,
    )
