"""A verification for the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from npukit.precision import result as precision
from npukit.report.report import counted
from npukit.verify.result import Compared, FirstDifference, Kind, OpUse, Verification
from npukit.verify.side import MAX_ROWS

_MAX_LINES = 20


def as_text(result: Verification) -> str:
    """What was compared, the first difference with its cause, and notes on the run."""
    return "\n".join(_lines(result))


def as_page(result: Verification) -> dict[str, Any]:
    """The part of it that the migration's HTML page shows."""
    page = dataclasses.asdict(result)
    page["compared"] = list(compared_lines(result.compared))
    if result.divergence and result.divergence.cause:
        page["divergence"]["cause"]["text"] = cause_text(result.divergence.cause)
    return page


def _lines(result: Verification) -> Iterator[str]:
    before, after = result.before, result.after
    yield f"before  {before.device}, {before.seconds} s"
    yield f"after   {after.device}, {after.seconds} s"
    if after.exit_code:
        yield f"\nDifferent: the migrated project failed with exit code {after.exit_code}:"
        yield from (f"  {line}" for line in after.output.split("\n"))
        if result.compared:
            yield "\nCompared until then:"
    elif result.divergence:
        yield from _divergence(result.divergence, result.tolerance)
        yield "\nCompared:"
    elif not result.same:
        yield "\nNot verified: both runs computed the same, but the migrated project ran nothing on the NPU. Compared:"
    else:
        yield f"\nSame, within a tolerance of {result.tolerance:.2g} for losses. Compared:"
    yield from (f"  {line}" for line in compared_lines(result.compared))
    if after.logs:
        yield f"\nAll that was printed is in {after.logs}"
    yield from _ops("Fell back to the CPU in torch_npu, with copies to the host and back", result.cpu_fallbacks)
    yield from _ops(NOT_SIMULATED, result.not_simulated)
    yield ""
    yield from result.notes


def compared_lines(compared: Sequence[Compared]) -> Iterator[str]:
    """What was compared, with one kind of figure per line."""
    for figures in compared:
        if figures.kind == "loss":
            end = f", {figures.first:g} to {figures.last:g}" if figures.count > 1 else f", {figures.first:g}"
            yield f"{counted(figures.count, 'value')} of {figures.name}{end}, {_apart(figures.largest_difference)}"
    for kind, what in _KINDS.items():
        alike = [figures for figures in compared if figures.kind == kind]
        if alike:
            counts = [figures.count for figures in alike]
            number = max(counts) if kind == "settings" else sum(counts)
            yield f"{what.format(number)}, {_apart(max(figures.largest_difference for figures in alike))}"


NOT_SIMULATED = (
    "Not simulated: the script got a NotImplementedError here, where a card computes; verify these lines on a card, "
    "with --device npu"
)
_KINDS: dict[Kind, str] = {
    "backward": "values that backward() was called on: {}",
    "outputs": "outputs of modules: {}",
    "gradients": "gradients before optimizer steps: {}",
    "weights": "weights after optimizer steps: {}",
    "settings": "settings of the optimizer in steps: {}",
}


def _apart(difference: float) -> str:
    return f"largest difference {difference:.1e}" if difference else "equal"


def _divergence(divergence: FirstDifference, tolerance: float) -> Iterator[str]:
    where = f"step {divergence.step}" if divergence.step is not None else f"number {divergence.number}"
    what = divergence.name if divergence.kind == "loss" else " ".join(filter(None, (divergence.kind, divergence.name)))
    yield f"\nDifferent: {what} from {where} onwards (tolerance for losses {tolerance:.2g}):"
    yield f"  before  {divergence.before_text or 'nothing more'}"
    yield f"  after   {divergence.after_text or 'nothing more'}"
    cause = divergence.cause
    if cause:
        yield f"  begins  {cause_text(cause)}"
        yield "          (left is the original, right the migrated project)"
        for known in cause.causes:
            yield f"  cause   {known.text}"
            yield f"  try     {known.remedy}"
    elif divergence.after is not None and divergence.kind != "settings":
        yield f"  begins  after the first {MAX_ROWS:,} modules and operators, which computed the same in both runs"


def cause_text(cause: precision.Divergence) -> str:
    """Where two runs begin to differ, in a line."""
    place = cause.right_place or cause.place or "an unknown line"
    moved = f" (before: {cause.place})" if cause.place not in ("", place) else ""
    return f"{place}{moved}: {cause.what}"


def _ops(title: str, uses: Sequence[OpUse]) -> Iterator[str]:
    if not uses:
        return
    yield f"\n{title}:"
    for use in uses[:_MAX_LINES]:
        yield f"  {use.op}  {use.line}  {counted(use.count, 'time')}"
    if len(uses) > _MAX_LINES:
        yield f"  … and {len(uses) - _MAX_LINES} more"
