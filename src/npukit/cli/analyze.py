"""npukit analyze"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npukit.cli.options import FormatOption, IgnoreOption, OutputOption, SelectOption, TargetOption
from npukit.errors import NpukitError
from npukit.report.finding import Severity
from npukit.report.progress import progress
from npukit.report.rendering import Format
from npukit.report.terminal import has_color
from npukit.report.writing import write_text


def analyze(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", show_default=False, help="Files, folders or installed packages.")
    ],
    target: TargetOption = None,
    format: FormatOption = Format.text,
    output: OutputOption = None,
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    trace: Annotated[
        Path | None, typer.Option(show_default=False, help="Also report what a `npukit run --trace-ops` file shows.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 1 on any error or warning.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(show_default=False, help="Report only findings that are not in this file.")
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write all current findings to the baseline.")
    ] = False,
) -> None:
    """Find what will not work, or will work differently, on an NPU."""
    from dataclasses import replace

    from npukit.migrate import analysis
    from npukit.migrate.baseline import new_findings, write_baseline
    from npukit.report.rendering import render

    if update_baseline and not baseline:
        raise NpukitError("--update-baseline needs --baseline FILE.")
    with progress("reading", "files") as tell:
        result = analysis.analyze(paths, target, select or (), ignore or (), trace, tell)
    if baseline and update_baseline:
        write_baseline(baseline, result.findings)
    if baseline:
        new = tuple(new_findings(baseline, result.findings))
        result = replace(result, findings=new, known=len(result.findings) - len(new))
    report = render(result.report(), format, color=output is None and has_color())
    if output:
        write_text(output, report)
        print(f"{result.summary}\n{output}")
    else:
        print(report, end="")
    if check and any(finding.severity is not Severity.note for finding in result.findings):
        raise typer.Exit(1)
