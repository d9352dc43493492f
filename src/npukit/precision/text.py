"""Format results for the terminal: the verdict, what it covers, and the first place where two runs diverge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from npukit.precision.bisect import Bisection
from npukit.precision.determinism import DeterminismCheck
from npukit.precision.environments import EnvironmentComparison
from npukit.precision.kernels import KernelsCheck
from npukit.precision.ranks import RanksComparison
from npukit.precision.result import Comparison, Divergence, Loss, Outcome, Replay, Row
from npukit.precision.weights import WeightsComparison
from npukit.report.language import translated
from npukit.report.report import counted
from npukit.report.terminal import printable_line
from npukit.report.wrapping import columns, padded

_MAX_LINES = 12
_LAYERS = 100


def _compare(comparison: Comparison) -> Iterator[str]:
    counts = comparison.counts
    yield f"{padded(translated('left'), 6)} {comparison.left}"
    yield f"{padded(translated('right'), 6)} {comparison.right}"
    yield ""
    if comparison.losses:
        yield _losses(comparison.losses)
    verdict = {"same": "Same" if comparison.coverage == 1 else "Same where compared"}.get(
        comparison.verdict, comparison.verdict.capitalize()
    )
    compared = f"{comparison.compared:,} of {counted(sum(counts.values()), 'row')} compared ({comparison.coverage:.0%})"
    yield f"{verdict}: {compared}, {counts.get('same', 0):,} same, {counts.get('differs', 0):,} differ."
    alone = [
        f"{counts[outcome.value]:,} {outcome.value}"
        for outcome in Outcome
        if counts.get(outcome.value) and outcome.value not in ("same", "differs")
    ]
    if alone:
        yield f"Not judged: {', '.join(alone)}."
    if comparison.renames:
        shown = list(comparison.renames.items())[:_MAX_LINES]
        yield (
            "Modules matched with each other: "
            + ", ".join(f"{old} = {new}" for old, new in shown)
            + _more(len(comparison.renames))
        )
    yield from (f"Note: {note}." for note in comparison.notes[:_MAX_LINES])
    if comparison.first:
        yield ""
        yield from _first(comparison.first)
        yield ""
        yield from _table([row for row in comparison.rows if row.outcome is Outcome.differs][:_MAX_LINES])


def _losses(losses: Sequence[Loss]) -> str:
    apart = next((loss for loss in losses if loss.left != loss.right), None)
    if apart is None:
        return f"Losses: the same in {counted(len(losses), 'step')}, {losses[0].left:.7g} at first."
    return f"Losses: {apart.left:.7g} on the left, {apart.right:.7g} on the right at step {apart.step}."


def _first(first: Divergence) -> Iterator[str]:
    row = first.row
    yield f"First difference, step {row.step}, rank {row.rank}: {first.what}"
    if places := dict.fromkeys(filter(None, (first.place, first.right_place))):
        yield _labelled("called from", " / ".join(places))
    yield _labelled("rows", f"{row.left or 'none'} / {row.right or 'none'}")
    if row.error is not None and row.allowed is not None:
        sqnr = f", SQNR {row.sqnr:.0f} dB" if row.sqnr is not None else ""
        figures = f"{row.error:.2g}, allowed {row.allowed:.2g}, of the inputs {row.inherited or 0:.2g}{sqnr}"
        yield _labelled("error", figures)
    for detail in row.details:
        yield _labelled("detail", detail)
    if first.replay:
        yield _labelled("replayed", _replay(first.replay))
    for cause in first.causes:
        yield _labelled("cause", cause.text)
        yield _labelled("try", cause.remedy)


def _labelled(label: str, text: str) -> str:
    return f"  {padded(translated(label), 12)} {translated(text)}"


def _replay(replay: Replay) -> str:
    errors = f"against float64 the left is off by {replay.left:.1e}, the right by {replay.right:.1e}"
    verdict = {
        "left": "the left is wrong",
        "right": "the right is wrong",
        "both": "both are wrong",
        "neither": "each is right for its own inputs and settings",
    }[replay.wrong]
    return f"{errors}, the CPU by {replay.rounding:.1e}: {verdict}"


def _table(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    width = min(60, max(len(row.title) for row in rows))
    yield f"{_head('differs', width)}  {_head('error', -8)}  {_head('of inputs', -9)}  {_head('growth', -7)}"
    for row in rows:
        error = "" if row.error is None else f"{row.error:.1e}"
        inherited = "" if row.inherited is None else f"{row.inherited:.1e}"
        growth = "" if row.growth is None else f"{row.growth:.1f}"
        yield f"{row.title[:width]:<{width}}  {error:>8}  {inherited:>9}  {growth:>7}"


def _head(word: str, width: int) -> str:
    """A column header of the given width, right-aligned if the width is negative."""
    shown = translated(word)
    return padded(shown, width) if width > 0 else " " * (-width - columns(shown)) + shown


def _check(check: DeterminismCheck) -> Iterator[str]:
    compared = check.comparison
    rows = f"{counted(compared.compared, 'row')} of two runs"
    if check.deterministic:
        yield f"Deterministic: {rows} have the same bits ({compared.coverage:.0%} of all)."
        return
    yield f"Not deterministic: {compared.counts.get('differs', 0):,} of {rows} differ in at least one bit."
    assert compared.first is not None
    yield ""
    yield from _first(compared.first)


def _bisect(bisection: Bisection) -> Iterator[str]:
    yield f"Recorded: {', then '.join(bisection.looks)}."
    yield from _compare(bisection.comparison)


def _ranks(comparison: RanksComparison) -> Iterator[str]:
    what = f"{counted(comparison.rows, 'row')} of {comparison.ranks} ranks in {counted(comparison.steps, 'step')}"
    if comparison.first is None:
        yield f"Same: {what}; weights, reduced gradients and optimizer steps have the same bits on all ranks."
        return
    row = comparison.first.row
    yield f"Different: from step {row.step} on, rank {row.rank} no longer computes what rank 0 does ({what} compared)."
    yield ""
    yield from _first(comparison.first)


def _ops(check: KernelsCheck) -> Iterator[str]:
    checked = [kernel for kernel in check.kernels if kernel.outcome != "not checked"]
    bad = check.out_of_line
    verdict = f"{len(bad):,} are out of line" if bad else "all as exact as their type allows"
    yield f"{len(checked):,} of {len(check.kernels):,} operators were run on {check.device} and in float64: {verdict}."
    good = sorted((kernel for kernel in checked if kernel not in bad), key=lambda kernel: -(kernel.error or 0.0))
    shown = [*bad, *good][:_MAX_LINES]
    if shown:
        yield ""
        heads = {"operator": 36, "type": 9, "shapes": 28, "error": -8, "CPU": -8}
        yield " ".join(_head(word, width) for word, width in heads.items())
    for kernel in shown:
        mark = f"  {translated('out of line')}" if kernel in bad else ""
        yield (
            f"{kernel.op[:36]:<36} {kernel.dtype:<9} {kernel.shapes[:28]:<28} {kernel.error or 0.0:>8.1e} "
            f"{kernel.rounding or 0.0:>8.1e}{mark}"
        )
    reasons = Counter(kernel.why for kernel in check.kernels if kernel.why)
    if reasons:
        yield ""
        yield from (f"Not checked: {count:,} because {why}." for why, count in reasons.most_common(_MAX_LINES))


def _weights(comparison: WeightsComparison) -> Iterator[str]:
    differ = [weight for weight in comparison.weights if weight.error]
    yield f"{padded(translated('left'), 6)} {comparison.left}"
    yield f"{padded(translated('right'), 6)} {comparison.right}"
    yield ""
    verdict = "Same" if comparison.same else "Different"
    yield f"{verdict}: {counted(len(comparison.weights), 'tensor')} in both, {len(differ):,} differ."
    for side, names in (("left", comparison.only_left), ("right", comparison.only_right)):
        if names:
            yield f"Only {side}: {counted(len(names), 'tensor')}, such as {', '.join(names[:4])}."
    if not differ:
        return
    yield ""
    yield f"{_head('layer', 40)} {_head('error', -9)}"
    yield from (f"{name:<40} {error:>9.1e}" for name, error in list(comparison.layers.items())[:_LAYERS] if error)
    yield ""
    yield f"{_head('largest differences', 60)} {_head('error', -9)} {_head('absolute', -9)}"
    for weight in sorted(differ, key=lambda item: -item.error)[:_MAX_LINES]:
        yield f"{weight.name:<60} {weight.error:>9.1e} {weight.largest:>9.1e}  {weight.details}".rstrip()


def _env(comparison: EnvironmentComparison) -> Iterator[str]:
    others = len(comparison.differences) - len(comparison.matter)
    yield f"{len(comparison.matter)} differences that can change numbers, {others} others."
    for item in comparison.matter:
        yield f"  {item.section:<9} {item.name}: {_formatted(item.left)} / {_formatted(item.right)}  ({item.why})"


def _formatted(value: Any) -> str:
    return "not set" if value is None else str(value)


def _more(count: int) -> str:
    return f" and {count - _MAX_LINES} more" if count > _MAX_LINES else ""


def _text(lines: Callable[[Any], Iterator[str]]) -> Callable[[Any], str]:
    return lambda result: "\n".join(printable_line(translated(line)) for line in lines(result))


OF = {
    "compare": _text(_compare),
    "check": _text(_check),
    "bisect": _text(_bisect),
    "ranks": _text(_ranks),
    "ops": _text(_ops),
    "weights": _text(_weights),
    "env": _text(_env),
}
"""How each command's result is printed."""
