"""What `npukit advise` prints."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from npukit.performance.advise.advise import Advised
from npukit.performance.advise.compare import ProfileComparison
from npukit.performance.advise.rank import RankSplit
from npukit.performance.advise.rule import Advice
from npukit.report import Severity
from npukit.report.finding import page_hint
from npukit.report.language import translated
from npukit.report.report import translated_finding
from npukit.report.terminal import paint, printable_line
from npukit.report.text import labelled
from npukit.report.wrapping import padded, wrap

PARTS = {
    "compute": "computing",
    "communication": "exposed communication",
    "copy": "copies",
    "host": "waiting for the host",
}
SHOWN_RANKS = 8
SIMULATED = "Simulated NPU: the operators are real, but the times are those of this CPU and say nothing about a card."


def as_text(advised: Advised, color: bool = False, width: int = 100) -> str:
    """The step, then the findings, then the rules that could not be applied.

    >>> print(as_text(advise([Path("profile")])))
    """
    lines = [*_steps(advised), ""]
    for number, advice in enumerate(advised.advice, 1):
        lines += [*_advice(number, advice, color, width), ""]
    if not advised.advice:
        lines += [translated("Nothing was found that would save more than 0.5% of the step."), ""]
    lines += _unjudged(advised, width)
    lines += [translated(f"Not read: {printable_line(note)}") for note in advised.notes]
    lines += page_hint(advice.finding for advice in advised.advice)
    return "\n".join(lines).rstrip() + "\n"


def comparison_text(comparison: ProfileComparison) -> str:
    """Two profiles next to each other.

    >>> print(comparison_text(advise([Path("gpu"), Path("npu")])))
    """
    before, after = comparison.before, comparison.after
    ratio = after.step_ms / before.step_ms if before.step_ms else 0.0
    lines = [f"before: {heading(before)}", f"after:  {heading(after)}, {ratio:.2f} times as long", ""]
    for title, changes in (("step", comparison.parts), ("kind", comparison.kinds), ("operator", comparison.operators)):
        lines.append(f"{title:34} {'before':>10} {'after':>10} {'change':>10} {'of step':>8}   calls per step")
        for change in changes[:12]:
            calls = f"{change.calls_before:.0f} -> {change.calls_after:.0f}" if title != "step" else ""
            figures = f"{change.before:10.2f} {change.after:10.2f} {change.ms:+10.2f} {change.percent:+7.1f}%"
            lines.append(f"{printable_line(change.name)[:34]:34} {figures}   {calls}".rstrip())
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _steps(advised: Advised) -> Iterator[str]:
    """The split of each rank's step as a table."""
    if advised.simulated:
        yield translated(SIMULATED)
    for rank in advised.ranks[:SHOWN_RANKS]:
        yield labelled(translated(heading(rank)), ", ".join(parts(rank)))
    if len(advised.ranks) > SHOWN_RANKS:
        yield f"... and {len(advised.ranks) - SHOWN_RANKS} more ranks"


def heading(rank: RankSplit) -> str:
    """
    >>> heading(RankSplit(0, "npu", 3, 136.6, split))
    'rank 0 (npu), step of 136.6 ms'
    """
    return f"rank {rank.rank} ({rank.device}), step of {rank.step_ms:.1f} ms"


def parts(rank: RankSplit) -> Iterator[str]:
    """The parts of a step in percent, the largest first."""
    split, step = rank.split, rank.step_ms or 1.0
    names = PARTS if split.idle is not None else {**PARTS, "host": "idle or waiting for the host"}
    if rank.device == "cpu":
        names = {**PARTS, "host": "Python between operators"}
    figures = [(getattr(split, part), name) for part, name in names.items()] + [(split.idle or 0.0, "idle")]
    for ms, name in sorted(figures, reverse=True):
        if ms / step >= 0.001:
            yield f"{100 * ms / step:.1f}% {translated(name)}"


def _advice(number: int, advice: Advice, color: bool, width: int) -> Iterator[str]:
    finding = translated_finding(advice.finding)
    won = translated(
        f"up to {advice.ms:.1f} ms, {advice.percent:.1f}% of the step" if advice.ms else "time not measured"
    )
    style = "33;1" if finding.severity is Severity.warning else "1"
    what = f"{number}. {finding.code} {printable_line(finding.what)}"
    yield paint("\n".join(wrap(what, width, subsequent_indent="   ")), style, color)
    ranks = f"rank {advice.ranks[0]}" if len(advice.ranks) == 1 else translated(f"{len(advice.ranks)} ranks")
    yield f"   {won} · {translated(f'{advice.confidence.value} confidence')} · {ranks}"
    evidence = printable_line(finding.evidence)
    if finding.place:
        evidence += f" ({printable_line(f'{finding.place.file}:{finding.place.line}')})"
    for name, text in (("seen", evidence), ("do", finding.remedy)):
        label = labelled(name, "")
        yield "\n".join(wrap(text, width, f"   {padded(label, 6)}", "         "))


def _unjudged(advised: Advised, width: int) -> Iterator[str]:
    """The rules that could not be applied, by the setting that they need."""
    if not advised.unjudged:
        return
    yield translated("Not judged:")
    by_need = sorted(advised.unjudged, key=lambda rule: rule.needs)
    for needs, group in groupby(by_need, key=lambda rule: rule.needs):
        names = ", ".join(f"{rule.name} ({rule.code})" for rule in group)
        yield "\n".join(wrap(translated(f"{names}: needs {needs}"), width, "   ", "     "))
