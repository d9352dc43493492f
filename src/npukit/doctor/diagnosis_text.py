"""A diagnosis as text for the terminal, and its remedies as a shell script."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from npukit.doctor.check import Check, CheckState
from npukit.doctor.examine import Diagnosis
from npukit.report import Finding, Severity
from npukit.report.finding import page_hint
from npukit.report.language import language, translated
from npukit.report.report import translated_finding
from npukit.report.terminal import paint, printable
from npukit.report.wrapping import padded, wrap

SIGNS = {
    CheckState.good: ("✓", "32"),
    CheckState.warning: ("!", "33"),
    CheckState.error: ("✗", "31"),
    CheckState.skipped: ("-", "2"),
}
INDENT = " " * 4


def as_text(diagnosis: Diagnosis, color: bool = False, width: int = 100) -> str:
    """Return one line for each check, its problems and their remedies below it, and the verdict at the end."""
    # Without cards, most checks are skipped and have nothing useful to show.
    shown = [check for check in diagnosis.checks if diagnosis.has_npus or check.state is not CheckState.skipped]
    lines = [line for check in shown for line in _check(check, color, width)]
    findings = [diagnosis.first] if diagnosis.first else []
    return "\n".join([*lines, "", *wrap(verdict(diagnosis), width), *page_hint(findings)])


def verdict(diagnosis: Diagnosis) -> str:
    """Return one sentence that says whether this machine can train, and what to fix first."""
    first, count = diagnosis.first, sum(t.finding.severity is Severity.error for t in diagnosis.troubles)
    if not diagnosis.good and first:
        others = f" ({count - 1} more after it)" if count > 1 else ""
        text = f"This machine cannot train on NPUs yet. Start with {first.code}{others}: "
        return translated(text + _sentence(translated(first.what)))
    machine = "This simulated machine" if diagnosis.simulated else "This machine"
    fix = f" Fix {first.code} first: {_sentence(translated(first.what))}" if first else ""
    return translated(f"{machine} can train on NPUs.{fix}")


def _check(check: Check, color: bool, width: int) -> Iterator[str]:
    sign, code = SIGNS[check.state]
    painted = paint(sign, code, color)
    says = wrap(printable(translated(check.says)), max(width - 18, 20)) or [""]
    yield f"{painted} {padded(translated(check.title), 14)} {says[0]}"
    yield from (" " * 17 + line for line in says[1:])
    for finding in map(translated_finding, check.findings):
        yield from _finding(finding, width)


def _finding(finding: Finding, width: int) -> Iterator[str]:
    evidence = f" [{finding.evidence}]" if finding.evidence else ""
    yield from _wrapped(f"{finding.code} {_sentence(finding.what)}{evidence}", width)
    if finding.severity is not Severity.note:
        yield from _wrapped(f"→ {finding.remedy}", width)


def _sentence(what: str) -> str:
    return what if what.endswith("?") else what + ("." if language() == "en" else "\u3002")


def _wrapped(text: str, width: int) -> list[str]:
    if language() == "zh":
        return wrap(printable(text), width, INDENT, INDENT + "  ")
    # Commands are not wrapped, so that they can be copied.
    whole = re.sub("`[^`]+`", lambda command: command[0].replace(" ", "\0"), printable(text))
    lines = textwrap.wrap(
        whole,
        width,
        initial_indent=INDENT,
        subsequent_indent=INDENT + "  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]


def fix_script(diagnosis: Diagnosis) -> str:
    """Return a shell script with the commands that fix the problems. Remedies without a command become comments."""
    lines = ["# Written by `npukit doctor --fix-script`. Read it, then source it, so that variables reach your shell."]
    for trouble in diagnosis.troubles:
        finding = trouble.finding
        if finding.severity is Severity.note:
            continue
        lines += ["", f"# {finding.code}: {' '.join(finding.what.split())}"]
        lines += [command for command in trouble.commands if command not in lines]
        lines += [] if trouble.commands else [f"# By hand: {' '.join(finding.remedy.split())}"]
    if len(lines) == 1:
        lines.append("# There is nothing to fix.")
    return "\n".join(lines) + "\n"
