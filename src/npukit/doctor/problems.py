"""The known problems of a machine. Both the findings and their pages are made from problems.yaml."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from npukit.facts.data import load_yaml
from npukit.report import Finding, Severity


@dataclass(frozen=True)
class Problem:
    """A known problem with its code, why it matters, and how it is usually fixed."""

    code: str
    title: str
    severity: Severity
    why: str
    remedy: str
    example: str  # shell commands or settings that fix it


@dataclass(frozen=True)
class Trouble:
    """A problem that was found on this machine, with the shell commands that fix it, if there are any."""

    finding: Finding
    commands: tuple[str, ...] = ()


@functools.cache
def problems() -> dict[str, Problem]:
    """Return all known problems by their code."""
    rows = load_yaml(Path(__file__).with_name("problems.yaml"))
    return {row["code"]: Problem(**{**row, "severity": Severity(row["severity"])}) for row in rows}


def trouble(
    code: str,
    what: str = "",
    remedy: str = "",
    evidence: str = "",
    commands: tuple[str, ...] = (),
    severity: Severity | None = None,
) -> Trouble:
    """Return a problem as it was found here. Arguments that are left out are taken from the known problem."""
    problem = problems()[code]
    finding = Finding(
        code,
        severity or problem.severity,
        what or problem.title,
        problem.why,
        remedy or problem.remedy,
        evidence=evidence,
    )
    return Trouble(finding, commands)


def page(problem: Problem) -> str:
    """Return the Markdown page of a problem for docs/reference/findings."""
    seen = {
        Severity.error: "an error: training will not work",
        Severity.warning: "a warning: training will work, but slowly or unreliably",
        Severity.note: "a note",
    }
    language = "yaml" if problem.example.startswith("training:") else "bash"
    return (
        f"# {problem.code}: {problem.title}\n\n"
        f"Found by `npukit doctor`. It is {seen[problem.severity]}.\n\n"
        f"## Why it matters\n\n{problem.why}\n\n"
        f"## What to do\n\n{problem.remedy}\n\n"
        f"```{language}\n{problem.example}```\n\n"
        f"**Check:** `npukit doctor` no longer reports {problem.code}.\n"
    )


def problem_page(code: str) -> str | None:
    """Return the page of a code, or None if it is not one of doctor's codes."""
    problem = problems().get(code)
    return page(problem) if problem else None


def pages() -> dict[str, str]:
    """Return all pages for docs/reference/findings with their index, by file name."""
    rows = [f"- [{problem.code}]({problem.code}.md) {problem.title}" for problem in problems().values()]
    head = "# Findings of doctor\n\n`npukit explain NPK933` prints one page.\n\n"
    return {f"{problem.code}.md": page(problem) for problem in problems().values()} | {
        "README.md": head + "\n".join(rows) + "\n"
    }
