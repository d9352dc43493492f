"""Compare runs of which one splits a batch into more parts and accumulates gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from npukit.precision.dump import Call, Dump


def parts_of(left: Dump, right: Dump) -> tuple[int, int] | None:
    """Into how many parts each run splits its batch, if the numbers differ and the parts add up to the same batch.

    >>> parts_of(whole, halves)
    (1, 2)
    """
    sizes = [list(_batch_sizes(dump)) for dump in (left, right)]
    counts = len(sizes[0]), len(sizes[1])
    return counts if counts[0] != counts[1] and all(counts) and sum(sizes[0]) == sum(sizes[1]) else None


def is_of_all_parts(call: Call) -> bool:
    """Whether a row concerns the whole batch, regardless of how it was split."""
    return call.kind in ("gradients", "optimizer") or call.phase == "optimizer"


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
    for call in dump.calls:
        if call.kind == "module" and not call.path and call.phase == "forward":
            yield next((value.shape[0] for value in call.inputs.values() if value.is_tensor and value.shape), 0)
