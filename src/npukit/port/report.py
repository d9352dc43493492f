"""The report of a port: what was done, how it went, and what is left to do by hand, with a suggestion for each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from npukit.migrate.rules import all_rules
from npukit.port.port import Port
from npukit.report import Finding, by_hand
from npukit.report.json import to_json
from npukit.report.markdown import escaped, fence
from npukit.report.rendering import Format, render
from npukit.report.report import Report, what_is_left
from npukit.report.writing import write_text


def report_of(port: Port) -> Report:
    """The port as a report: its steps are the facts, its findings are what is left."""
    left = [_in_project(finding, port.migrated) for finding in by_hand(port.analysis.findings)]
    failed = [step.name for step in port.steps if step.outcome == "failed"]
    if failed:
        end = f"Not finished: {', '.join(failed)} failed"
    elif port.proven:
        end = "Everything that was run passed"
    else:
        end = "Not proven: neither tests nor a training showed that it works"
    verdict = f"{end}; {what_is_left(left)}. Branch {port.branch}."
    not_in_it = "; uncommitted changes were not ported" if port.uncommitted else ""
    facts = {"commit": f"{port.base[:10]}{not_in_it}"}
    facts |= {step.name: f"{'FAILED: ' * (step.outcome == 'failed')}{step.says}" for step in port.steps}
    names = {rule.code: rule.name for rule in all_rules()}
    return Report(f"Port of {port.project.resolve().name} to NPUs", verdict, left, facts, names)


def _in_project(finding: Finding, migrated: Path) -> Finding:
    """The finding with its path as in the project, not in the branch's worktree."""
    if finding.place is None:
        return finding
    return replace(finding, place=replace(finding.place, file=finding.place.file.relative_to(migrated)))


def as_data(port: Port) -> dict[str, Any]:
    """The port as plain data."""
    from npukit.report.json import as_data as report_data

    steps = [{"name": step.name, "outcome": step.outcome, "says": step.says, "details": step.details}
             for step in port.steps]  # fmt: skip
    return {**report_data(report_of(port)), "good": port.good, "proven": port.proven, "branch": port.branch,
            "base": port.base, "steps": steps}  # fmt: skip


def write_reports(port: Port) -> list[Path]:
    """Write the report as Markdown, HTML and JSON next to the state.

    >>> write_reports(port(Path("nanoGPT")))
    [PosixPath('nanoGPT/.npukit/port/report.md'), ...]
    """
    report = report_of(port)
    texts = {
        "report.md": render(report, Format.markdown) + _details(port),
        "report.html": render(report, Format.html),
        "report.json": to_json(as_data(port)) + "\n",
    }
    for name, text in texts.items():
        write_text(port.folder / name, text)
    return [port.folder / name for name in texts]


def _details(port: Port) -> str:
    """The full output of each step, for Markdown."""
    parts = []
    for step in port.steps:
        if step.details:
            text = "\n".join(step.details)
            parts += [f"\n## Step {escaped(step.name)}\n", fence(text), text, fence(text)]
    return "\n".join(parts) + "\n" if parts else ""
