"""npukit advise"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import JsonOption, report_option
from npukit.cli.results import show
from npukit.report.language import translated
from npukit.report.terminal import console, has_color
from npukit.report.text import terminal_columns


def advise(
    profiles: Annotated[list[Path], typer.Argument(metavar="PROFILE...", show_default=False)],
    report: Annotated[Path | None, report_option(".html", ".sarif")] = None,
    json: JsonOption = False,
) -> None:
    """Show where the time of a step goes and what could be saved.

    PROFILE is a folder of torch_npu's profiler or of msprof, or any part of one, a .db, a trace of torch.profiler, the
    log.jsonl of `npukit train`, or a folder that contains some of these, with one file or folder per rank. Two profiles
    of the same rank are compared, to show what became slower.

    Examples:
        npukit advise profile  # a folder of `npukit profile`
        npukit advise profile --report report.html  # with time lines
        npukit advise before after  # what got slower
    """
    from npukit.performance.advise.advise import advise as judge
    from npukit.performance.advise.compare import ProfileComparison
    from npukit.performance.advise.page import write_report
    from npukit.performance.advise.text import as_text, comparison_text

    waiting = (
        console(sys.stderr).status(translated("Reading profiles")) if sys.stderr.isatty() else contextlib.nullcontext()
    )
    with waiting:
        result = write_report(profiles, report) if report else judge(profiles)
    if isinstance(result, ProfileComparison):
        text = comparison_text(result)
    else:
        text = as_text(result, has_color(), terminal_columns())
    show(result, text, json)
