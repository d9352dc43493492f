"""Find the operator in a dump in which NaN or Inf first appeared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from npukit.precision.dump import Call, Value
from npukit.precision.explaining import place_of
from npukit.precision.reading.find import find_dumps, read

# They write Inf on purpose, for example to build attention masks.
_FILLS = ("fill", "full", "where", "scalar_tensor", "copy", "empty", "triu", "tril", "mask")


def first_nonfinite(dump: Path) -> Call | None:
    """The first operator that returns NaN although its inputs have none; without any NaN, the first that creates Inf.

    >>> first_nonfinite(Path("dump")).title
    'log in layers.1.act'
    """
    dumps = [read(file, step) for (step, _), file in sorted(find_dumps(dump).items())]
    calls = [call for dump in dumps for call in dump.calls if call.kind == "op"]
    return next(_begin(calls, "nan"), None) or next(_begin(calls, "inf"), None)


def origin_sentence(dump: Path) -> str:
    """The same as a sentence with the line of code; empty if no operator is responsible."""
    call = first_nonfinite(dump)
    if call is None:
        return ""
    what = "NaN" if _has(call.outputs.values(), "nan") else "Inf"
    place = place_of(call.stack)
    return f"The first operator with {what} is {call.title}{f', called from {place}' if place else ''}."


def _begin(calls: Iterable[Call], kind: str) -> Iterator[Call]:
    for call in calls:
        if kind == "inf" and any(word in call.op for word in _FILLS):
            continue
        if _has(call.outputs.values(), kind) and not _has(call.inputs.values(), kind):
            yield call


def _has(values: Iterable[Value], kind: str) -> bool:
    return any(getattr(value, kind) for value in values)
