"""npukit analyze"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated

import typer

from npukit.errors import NpukitError
from npukit.facts.cards import DEFAULT_CARD
from npukit.report.finding import Severity
from npukit.report.rendering import Format


def analyze(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH", show_default=False, help="Files, folders or installed packages.")
    ],
    target: Annotated[str, typer.Option(help="The version to run with, as torch_npu=VERSION.")] = "torch_npu=2.13",
    card: Annotated[str, typer.Option(help="The card to run on; `npukit sim info` lists them.")] = DEFAULT_CARD,
    format: Annotated[Format, typer.Option(help="The form of the report.")] = Format.text,
    output: Annotated[Path | None, typer.Option(help="Write the report to this file.")] = None,
    select: Annotated[list[str] | None, typer.Option(help="Only rules whose codes start so, e.g. NPK2.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="No rules whose codes start so.")] = None,
    trace: Annotated[Path | None, typer.Option(help="A trace of `npukit run --trace-ops`, to tell from too.")] = None,
    check: Annotated[bool, typer.Option("--check", help="End with code 1 if there is an error or a warning.")] = False,
    baseline: Annotated[Path | None, typer.Option(help="Tell only what this file does not hold.")] = None,
    update_baseline: Annotated[bool, typer.Option("--update-baseline", help="Write the baseline anew.")] = False,
) -> None:
    """Say what in a project will not run, will run slowly or will differ on an NPU, and why."""
    from dataclasses import replace

    from npukit.migrate import analysis
    from npukit.migrate.baseline import new_findings, write_baseline
    from npukit.report.rendering import render

    name, _, version = target.partition("=")
    if name.replace("-", "_") != "torch_npu" or not version:
        raise NpukitError(f"--target is {target!r}: write it as torch_npu=2.13.")
    if update_baseline and not baseline:
        raise NpukitError("--update-baseline needs --baseline FILE.")
    with _waiting():
        result = analysis.analyze(paths, version, card, select or (), ignore or (), trace)
    if baseline and update_baseline:
        write_baseline(baseline, result.findings)
    if baseline:
        new = tuple(new_findings(baseline, result.findings))
        result = replace(result, findings=new, known=len(result.findings) - len(new))
    report = render(result.report(), format, color=output is None and sys.stdout.isatty())
    if output:
        _write(output, report)
        print(f"{result.summary}\n{output}")
    else:
        print(report, end="")
    if check and any(finding.severity is not Severity.note for finding in result.findings):
        raise typer.Exit(1)


def _waiting() -> AbstractContextManager[object]:
    """A spinner, where somebody looks at it."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("reading …")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise NpukitError(f"The report cannot be written to {path}: {error.strerror}.") from error
