"""Compare runs of which one splits a batch into more parts, or has its rows in a different order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from npukit.precision.dump import Call, Dump, Value
from npukit.precision.provenance import same_values


def parts_of(left: Dump, right: Dump) -> tuple[int, int] | None:
    """Into how many parts each run splits its batch, if the numbers differ and the parts add up to the same batch.

    >>> parts_of(whole, halves)
    (1, 2)
    """
    sizes = [list(_batch_sizes(dump)) for dump in (left, right)]
    counts = len(sizes[0]), len(sizes[1])
    return counts if counts[0] != counts[1] and all(counts) and sum(sizes[0]) == sum(sizes[1]) else None


def has_other_order(left: Dump, right: Dump) -> bool:
    """Whether the batches have the same values, but in a different order, as far as figures show.

    >>> has_other_order(rows, rows_reversed)
    True
    """
    ours, theirs = _batch(left), _batch(right)
    pairs = [(value, theirs[place]) for place, value in ours.items() if place in theirs]
    alike = len(pairs) == len(ours) and all(
        one.shape == other.shape and same_values(one, other) for one, other in pairs
    )
    return alike and any(one.hash and other.hash and one.hash != other.hash for one, other in pairs)


def of_all_parts(dump: Dump) -> Dump:
    """The rows of a dump that concern the whole batch, regardless of how it was split or ordered."""
    whole = (call for call in dump.calls if call.kind in ("gradients", "optimizer") or call.phase == "optimizer")
    return replace(dump, calls=tuple(whole))


def uneven_modules(left: Dump, right: Dump) -> frozenset[str]:
    """The modules that one run calls more often than the other, for example to compute logits in chunks.

    >>> uneven_modules(whole, logits_in_chunks)
    frozenset({'lm_head'})
    """
    counts = [
        Counter(call.path for call in dump.calls if call.kind == "module" and call.phase == "forward")
        for dump in (left, right)
    ]
    return frozenset(path for path in counts[0] if counts[0][path] != counts[1][path])


def _batch_sizes(dump: Dump) -> Iterator[int]:
    """The number of batch rows in each call of the root module."""
    for call in _roots(dump):
        yield next((value.shape[0] for value in call.inputs.values() if value.is_tensor and value.shape), 0)


def _batch(dump: Dump) -> dict[str, Value]:
    """What the only call of the root module receives; nothing if there are several calls."""
    calls = list(_roots(dump))
    inputs = calls[0].inputs if len(calls) == 1 else {}
    return {place: value for place, value in inputs.items() if value.is_tensor and "parameters." not in place}


def _roots(dump: Dump) -> Iterator[Call]:
    return (call for call in dump.calls if call.kind == "module" and not call.path and call.phase == "forward")
