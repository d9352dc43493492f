"""Shows where the time of a step goes and what could be saved: the step's split, then findings by milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npukit.performance.advise.compare import ProfileComparison, compared
from npukit.performance.advise.rank import Rank, RankSplit, split_of, steady
from npukit.performance.advise.rule import Advice, Unjudged
from npukit.performance.advise.rules import all_rules
from npukit.performance.read import Trace, read_profiles
from npukit.report import Severity

MIN_PERCENT = 0.5  # findings that could save less are not shown


@dataclass(frozen=True)
class Advised:
    """What `npukit advise` found in the profile of a job."""

    profiles: tuple[str, ...]
    format: str
    simulated: bool
    ranks: tuple[RankSplit, ...]
    advice: tuple[Advice, ...]  # errors first, then by the time that could be saved
    unjudged: tuple[Unjudged, ...]
    notes: tuple[str, ...]  # files that could not be read


def advise(paths: Sequence[Path]) -> Advised | ProfileComparison:
    """Read the profiles of a job and judge them; two of the same rank are compared.

    >>> advise([Path("profile")]).advice[0].finding.code
    'NPK831'
    """
    if len(paths) == 2:
        before, after = (read_profiles([path]) for path in paths)
        if {trace.rank for trace in before} & {trace.rank for trace in after}:
            return compared(Rank(before[0]), Rank(after[0]))
        return judge([*before, *after])
    return judge(read_profiles(paths))


def judge(traces: Sequence[Trace]) -> Advised:
    """The same for profiles that have been read."""
    ranks = [Rank(steady(trace)) for trace in traces]
    profiled = [rank for rank in ranks if rank.trace.format != "log"]
    advice: list[Advice] = []
    unjudged: list[Unjudged] = []
    for rule in all_rules():
        about = profiled if "log" not in rule.needs else [rank for rank in ranks if rank.trace.format == "log"]
        about = [rank for rank in about if rank.trace.device in rule.devices]
        if not about:
            continue
        if missing := rule.missing(about):
            unjudged.append(Unjudged(rule.code, rule.name, missing))
            continue
        if rule.job_check:
            advice += rule.job_check(about)
        elif rule.check:
            by_rank = [piece for rank in about for piece in rule.check(rank)]
            advice += _merged(by_rank)
    worth = [piece for piece in advice if piece.percent >= MIN_PERCENT or piece.ms == 0]
    return Advised(
        profiles=tuple(str(trace.source) for trace in traces),
        format=traces[0].format,
        simulated=any(trace.simulated for trace in traces),
        ranks=tuple(split_of(rank) for rank in profiled),
        advice=tuple(sorted(worth, key=lambda piece: (piece.finding.severity is not Severity.error, -piece.ms))),
        unjudged=tuple(unjudged),
        notes=tuple(note for trace in traces for note in trace.notes),
    )


def _merged(advice: list[Advice]) -> list[Advice]:
    """Findings that several ranks have in common become one, for the rank that it costs most."""
    merged: dict[tuple[str, str], Advice] = {}
    ranks: dict[tuple[str, str], list[int]] = {}
    for piece in advice:
        key = piece.finding.code, piece.finding.subject
        ranks.setdefault(key, []).extend(piece.ranks)
        if key not in merged or piece.ms > merged[key].ms:
            merged[key] = piece
    return [
        Advice(piece.finding, piece.ms, piece.percent, piece.confidence, tuple(sorted(set(ranks[key]))))
        for key, piece in merged.items()
    ]
