"""A comparison for the terminal: the verdict, how much it covers, and the first place where the runs part."""

from __future__ import annotations

from collections.abc import Iterator

from npukit.precision.result import Comparison, Divergence, Outcome, Row
from npukit.report.terminal import printable_line

_MOST = 12


def as_text(found: Comparison) -> str:
    """The summary that `npukit precision compare` prints."""
    return "\n".join(printable_line(line) for line in _lines(found))


def _lines(found: Comparison) -> Iterator[str]:
    counts = found.counts
    yield f"left   {found.left}"
    yield f"right  {found.right}"
    yield ""
    verdict = "Same" if found.same else "Different"
    compared = f"{found.compared:,} of {sum(counts.values()):,} rows compared ({found.coverage:.0%})"
    yield f"{verdict}: {compared}, {counts.get('same', 0):,} same, {counts.get('differs', 0):,} differ."
    alone = [
        f"{counts[each.value]:,} {each.value}"
        for each in Outcome
        if counts.get(each.value) and each.value not in ("same", "differs")
    ]
    if alone:
        yield f"Not judged: {', '.join(alone)}."
    if found.renames:
        shown = list(found.renames.items())[:_MOST]
        yield (
            "Modules taken for each other: "
            + ", ".join(f"{old} = {new}" for old, new in shown)
            + _more(len(found.renames))
        )
    yield from (f"Note: {note}." for note in found.notes[:_MOST])
    if found.first:
        yield ""
        yield from _first(found.first)
        yield ""
        yield from _table([row for row in found.rows if row.outcome is Outcome.differs][:_MOST])


def _first(first: Divergence) -> Iterator[str]:
    row = first.row
    yield f"First difference, step {row.step}, rank {row.rank}: {first.what}"
    if first.place:
        yield f"  called from  {first.place}"
    yield f"  rows         {row.left or 'none'} / {row.right or 'none'}"
    if row.error is not None and row.allowed is not None:
        sqnr = f", SQNR {row.sqnr:.0f} dB" if row.sqnr is not None else ""
        yield f"  error        {row.error:.2g}, allowed {row.allowed:.2g}, of the inputs {row.inherited or 0:.2g}{sqnr}"
    for detail in row.details:
        yield f"  detail       {detail}"
    for cause in first.causes:
        yield f"  likely       {cause.text}"
        yield f"  try          {cause.remedy}"


def _table(rows: list[Row]) -> Iterator[str]:
    if not rows:
        return
    width = min(60, max(len(row.title) for row in rows))
    yield f"{'differs':<{width}}  {'error':>8}  {'of inputs':>9}  {'growth':>7}"
    for row in rows:
        error = "" if row.error is None else f"{row.error:.1e}"
        inherited = "" if row.inherited is None else f"{row.inherited:.1e}"
        growth = "" if row.growth is None else f"{row.growth:.1f}"
        yield f"{row.title[:width]:<{width}}  {error:>8}  {inherited:>9}  {growth:>7}"


def _more(count: int) -> str:
    return f" and {count - _MOST} more" if count > _MOST else ""
