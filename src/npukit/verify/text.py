"""A verification for the terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from npukit.verify.result import Divergence, OpDifference, OpUse, Verification

_MOST = 20


def as_text(result: Verification) -> str:
    """What was compared, the first difference and where it comes from, and what to know of the run."""
    return "\n".join(_lines(result))


def as_page(result: Verification) -> dict[str, Any]:
    """What the migration's HTML page shows of it."""
    page = dataclasses.asdict(result)
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
    elif result.divergence:
        yield from _divergence(result.divergence, result.tolerance)
    elif not result.same:
        yield "\nNot verified: the losses are the same, but the migrated project ran nothing on the NPU."
    else:
        apart = (
            f"largest difference {result.largest_difference:.1e}"
            if result.largest_difference
            else "equal to the last printed digit"
        )
        yield (
            f"\nSame: {result.compared} {'loss' if result.compared == 1 else 'losses'}, "
            f"from {before.losses[0]:g} to {before.losses[-1]:g}, "
            f"{apart} (tolerance {result.tolerance:g})."
        )
    yield from _ops("Fell back to the CPU in torch_npu, with copies to the host and back", result.cpu_fallbacks)
    yield from _ops("Not simulated", result.not_simulated)
    yield ""
    yield from result.notes


def _divergence(divergence: Divergence, tolerance: float) -> Iterator[str]:
    where = f"step {divergence.step}" if divergence.step is not None else f"loss number {divergence.number}"
    yield f"\nDifferent from {where} onwards ({divergence.name}, tolerance {tolerance:g}):"
    yield f"  before  {divergence.before_text or 'nothing more'}"
    yield f"  after   {divergence.after_text or 'nothing more'}"
    cause = divergence.cause
    if cause:
        yield f"  begins  {cause_text(cause)}"
    elif divergence.after is not None:
        yield "  begins  after the first 50,000 operators, which computed the same in both runs"


def cause_text(cause: OpDifference) -> str:
    """Where two runs part, in a line."""
    place = cause.after_line or cause.before_line or "an unknown line"
    moved = f" (before: {cause.before_line})" if cause.before_line not in ("", place) else ""
    what = {
        "result": f"gives another result (norm {_norm(cause.before_norm)} before, {_norm(cause.after_norm)} after)",
        "only before": "is called only before the migration",
        "only after": "is called only after the migration",
    }
    line = f"{place}{moved}: {cause.op}{' in backward' if cause.backward else ''} {what[cause.kind]}"
    return f"{line}; then {cause_text(cause.then)}" if cause.then else line


def _norm(norm: float | None) -> str:
    return "unknown" if norm is None else f"{norm:.6g}"


def _ops(title: str, uses: Sequence[OpUse]) -> Iterator[str]:
    if not uses:
        return
    yield f"\n{title}:"
    for use in uses[:_MOST]:
        yield f"  {use.op}  {use.line}  {use.count} times"
    if len(uses) > _MOST:
        yield f"  … and {len(uses) - _MOST} more"
