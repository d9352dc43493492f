"""npukit analyze"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from npukit.cli.help import OUTPUT
from npukit.cli.options import IgnoreOption, JsonOption, SelectOption, TargetOption, report_option
from npukit.cli.results import show
from npukit.errors import NpukitError
from npukit.report.finding import Severity
from npukit.report.progress import progress
from npukit.report.rendering import Format
from npukit.report.terminal import has_color
from npukit.report.writing import write_text


def analyze(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", show_default=False, help="Files, folders or installed packages.")
    ],
    target: TargetOption = None,
    select: SelectOption = None,
    ignore: IgnoreOption = None,
    trace_ops: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Also use this trace, written by `npukit run --trace-ops`."
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with code 1 on any error or warning.")] = False,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Report only findings that are not in this file."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write all current findings to the baseline.")
    ] = False,
    format: Annotated[
        Literal["text", "github"],
        typer.Option(rich_help_panel=OUTPUT, help="github: annotations of a pull request, for GitHub Actions."),
    ] = "text",
    report: Annotated[Path | None, report_option(".html", ".md", ".json", ".sarif")] = None,
    json: JsonOption = False,
) -> None:
    """Find what will not work, or will work differently, on an NPU.

    It reads the code and runs nothing. Exits with code 0 whatever it finds, unless --check is given.

    Examples:
        npukit analyze .  # a project, or a file, or an installed package
        npukit analyze . --report report.html  # the same as a page
        npukit analyze . --check --format github  # in CI: annotations, and exit code 1 on problems
    """
    from dataclasses import replace

    from npukit.migrate import analysis
    from npukit.migrate.baseline import new_findings, write_baseline
    from npukit.report.json import to_json
    from npukit.report.rendering import render
    from npukit.report.result import envelope

    if update_baseline and not baseline:
        raise NpukitError("--update-baseline needs --baseline FILE.")
    with progress("reading", "files") as on_progress:
        result = analysis.analyze(paths, target, select or (), ignore or (), trace_ops, on_progress)
    if not result.files:
        raise NpukitError(f"There is no code to read in {', '.join(map(str, paths))}: name the folder of a project.")
    if baseline and update_baseline:
        write_baseline(baseline, result.findings)
    if baseline:
        new = tuple(new_findings(baseline, result.findings))
        result = replace(result, findings=new, known=len(result.findings) - len(new))
    failed = check and any(finding.severity is not Severity.note for finding in result.findings)
    if report and report.suffix == ".json":
        write_text(report, to_json(envelope("npukit analyze", result.as_data(), int(failed))) + "\n")
    elif report:
        write_text(report, render(result.report(), Format.of(report)))
    show(result.as_data(), lambda: render(result.report(), Format(format), color=has_color()), json, int(failed))
